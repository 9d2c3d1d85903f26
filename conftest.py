"""Options and marks of the host's pytest; what they do is in vm/plugin.py."""

pytest_plugins = ["vm.plugin"]
