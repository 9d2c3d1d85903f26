#!/bin/sh
# What `make` calls before anything of ours can run: "tools" installs the programs, "venv DIR" the Python side.
# POSIX sh, since on a fresh machine there may be nothing else yet.
set -eu

PYTHON=${PYTHON:-python3}
# program:Debian package. A program may also be a file (headers) or "python:module".
NEEDED="qemu-system-x86_64:qemu-system-x86 gcc:gcc make:make flex:flex bison:bison bc:bc git:git perl:perl
 ccache:ccache mksquashfs:squashfs-tools busybox:busybox-static ip:iproute2 tc:iproute2 ss:iproute2 lz4:lz4 xz:xz-utils
 cpio:cpio depmod:kmod setpriv:util-linux ldd:libc-bin file:file script:bsdutils pahole:dwarves nm:binutils
 /usr/include/gelf.h:libelf-dev /usr/include/openssl/ssl.h:libssl-dev
 /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring"

have() {
	case $1 in
	/*) [ -e "$1" ] ;;
	*) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null 2>&1 ;;
	esac
}

missing() {
	for pair in $NEEDED; do
		have "${pair%%:*}" || echo "${pair#*:}"
	done | sort -u
	"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
}

install() {
	packages=$(missing | tr '\n' ' ')
	[ -n "$packages" ] || return 0
	if ! command -v apt-get >/dev/null 2>&1; then
		echo "perpatch: programs are missing: install what Debian calls: $packages" >&2
		exit 3
	fi
	if [ "$(id -u)" = 0 ]; then
		root=
	elif sudo -n true 2>/dev/null; then
		root=sudo
	else
		echo "perpatch: programs are missing: run: sudo apt-get install $packages" >&2
		exit 3
	fi
	echo "perpatch: installing $packages"
	$root apt-get update -qq
	# shellcheck disable=SC2086 # a list of words is meant
	DEBIAN_FRONTEND=noninteractive $root apt-get install -y -qq --no-install-recommends $packages >/dev/null
	left=$(missing | tr '\n' ' ')
	if [ -n "$left" ]; then
		echo "perpatch: still missing after apt-get install: $left" >&2
		exit 3
	fi
}

case ${1:-} in
missing)
	missing
	;;
tools)
	install
	;;
venv)
	"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
		echo "perpatch: $PYTHON is older than 3.11: set PYTHON to a newer one" >&2
		exit 3
	}
	install
	"$PYTHON" -m venv "$2"
	"$2/bin/python" -m pip --disable-pip-version-check install -q -e '.[dev]'
	;;
*)
	echo "usage: setup.sh missing | tools | venv DIR" >&2
	exit 2
	;;
esac
