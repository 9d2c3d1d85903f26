// SPDX-License-Identifier: GPL-2.0
/* Which fault is active: see net/mutant.h. */
#include <linux/export.h>
#include <linux/moduleparam.h>
#include <linux/string.h>
#include <net/mutant.h>

int active_mutant __read_mostly;
EXPORT_SYMBOL(active_mutant);

#define MUTANT_NAME(name) #name,
static const char * const names[] = { "none", MUTANTS(MUTANT_NAME) };

static int mutant_set(const char *val, const struct kernel_param *kp)
{
	int id = sysfs_match_string(names, val);

	if (id < 0)
		return id;
	WRITE_ONCE(active_mutant, id);
	return 0;
}

static int mutant_get(char *buffer, const struct kernel_param *kp)
{
	return sprintf(buffer, "%s\n", names[READ_ONCE(active_mutant)]);
}

static const struct kernel_param_ops mutant_ops = {
	.set = mutant_set,
	.get = mutant_get,
};
module_param_cb(active, &mutant_ops, NULL, 0644);
