/* Finds a device as programs do that look behind the library's back: one line for each way, a word and what was found. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <glob.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

static char text[PATH_MAX];

static const char *first_line(FILE *file)
{
	if (file == NULL || fgets(text, sizeof text, file) == NULL)
		strcpy(text, "nothing");
	if (file != NULL)
		fclose(file);
	text[strcspn(text, "\n")] = 0;
	return text;
}

static const char *file(const char *folder, const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/%s", folder, name);
	return first_line(fopen(path, "r"));
}

static const char *real(const char *folder, const char *name)
{
	static char resolved[PATH_MAX];
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/%s", folder, name);
	return realpath(path, resolved) ? resolved : "nothing";
}

static const char *at(int folder, const char *name)
{
	int fd = openat(folder, name, O_RDONLY);

	return first_line(fd < 0 ? NULL : fdopen(fd, "r"));
}

static const char *link_at(int folder, const char *name)
{
	ssize_t length = readlinkat(folder, name, text, sizeof text - 1);

	text[length < 0 ? 0 : length] = 0;
	return text;
}

static const char *here(void)
{
	return getcwd(text, sizeof text) ? text : "nothing";
}

static int is_dot(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

/* How many paths match, and the first. */
static const char *matching(const char *pattern)
{
	glob_t all;

	if (glob(pattern, 0, NULL, &all) != 0)
		return "nothing";
	snprintf(text, sizeof text, "%zu %s", all.gl_pathc, all.gl_pathv[0]);
	globfree(&all);
	return text;
}

/* The entries of a folder, but for those with a dot. */
static int listed(DIR *folder)
{
	struct dirent *entry;
	int found = 0;

	while (folder != NULL && (entry = readdir(folder)) != NULL)
		found += is_dot(entry);
	if (folder != NULL)
		closedir(folder);
	return found;
}

/* By a walk through the tree: how many files have this name, and the path of the first; and what the C library's structures say wrongly. */
static const char *walked(char *root, int options, const char *name)
{
	char *roots[] = {"/proc/self/attr", root, NULL};
	char first[PATH_MAX] = "nothing";
	FTS *walk = fts_open(roots, options, NULL);
	FTSENT *entry, *child;
	int found = 0, wrong = 0, sum = 0;
	struct stat status;

	while (walk != NULL && (entry = fts_read(walk)) != NULL) {
		if (entry->fts_level == FTS_ROOTLEVEL && strcmp(entry->fts_path, root) != 0 && strcmp(entry->fts_path, roots[0]) != 0)
			wrong++;
		/* What it is called, where it is opened, and the entry above all name the same. */
		wrong += strlen(entry->fts_path) != entry->fts_pathlen || stat(entry->fts_path, &status) != stat(entry->fts_accpath, &status);
		if (entry->fts_level > FTS_ROOTLEVEL && entry->fts_info != FTS_DP)
			wrong += strncmp(entry->fts_path, entry->fts_parent->fts_path, entry->fts_parent->fts_pathlen) != 0 ||
				 entry->fts_parent->fts_pathlen >= entry->fts_pathlen;
		if (entry->fts_info == FTS_D && strcmp(entry->fts_name, "gids") == 0)
			for (child = fts_children(walk, 0); child != NULL; child = child->fts_link)
				sum += child->fts_pathlen > entry->fts_pathlen;
		if (strcmp(entry->fts_name, name) == 0 && entry->fts_info != FTS_DP && found++ == 0) {
			FILE *file = fopen(entry->fts_accpath, "r");

			wrong += file == NULL || strcmp(first_line(file), "nothing") == 0;
			strcpy(first, entry->fts_path);
		}
	}
	if (walk == NULL || fts_close(walk) != 0)
		wrong++;
	snprintf(text, sizeof text, "%d %.800s, %d children, %d wrong, in %.800s", found, first, sum, wrong, getcwd(first + strlen(first) + 1, 400));
	return text;
}

int main(int count, char **arguments)
{
	const char *name = count > 1 ? arguments[1] : "roce0";
	char x[PATH_MAX], command[2 * PATH_MAX];
	struct dirent **list;
	struct statx status;
	struct stat old;
	struct statfs system_here, system_there;
	struct statvfs system_old;
	struct file_handle handle = {.handle_bytes = 0};
	int folder, found, mount;

	snprintf(x, sizeof x, "/sys/class/infiniband/%s", name);
	/* Mooncake: the folder two above, its name, and the node there. */
	printf("two-above %s\n", real(x, "../.."));
	printf("two-above-name %s\n", basename((char *)real(x, "../..")));
	printf("two-above-node %s\n", file(real(x, "../.."), "numa_node"));
	/* UCCL, NCCL and UCX: the device. */
	printf("device %s\n", real(x, "device"));
	printf("node %s\n", file(x, "device/numa_node"));
	printf("vendor %s\n", file(x, "device/vendor"));
	printf("processors %s\n", file(x, "device/local_cpulist"));
	/* NCCL: from the bus number to the device. */
	if (count > 2) {
		snprintf(command, sizeof command, "/sys/class/pci_bus/%.7s/../..", arguments[2]);
		printf("by-bus %s\n", real(command, arguments[2]));
		printf("by-address %s\n", real("/sys/bus/pci/devices", arguments[2]));
		snprintf(command, sizeof command, "/sys/bus/pci/devices/%s", arguments[2]);
		printf("class %s\n", file(command, "class"));
	}
	/* DLSlime and scripts: the link's text. */
	snprintf(command, sizeof command, "%s/device", x);
	printf("device-link %s\n", link_at(AT_FDCWD, command));
	printf("link %s\n", link_at(AT_FDCWD, x));
	printf("subsystem %s\n", real(x, "device/subsystem"));
	printf("verbs %s\n", file("/sys/class/infiniband_verbs/uverbs0", "ibdev"));
	printf("verbs-device %s\n", real("/sys/class/infiniband_verbs/uverbs0", "device"));
	/* By descriptors. */
	folder = open("/sys/class/infiniband", O_PATH | O_DIRECTORY);
	printf("at-link %s\n", link_at(folder, name));
	snprintf(command, sizeof command, "%s/../../numa_node", name);
	printf("at-two-above-node %s\n", at(folder, command));
	printf("at-statx %d\n", statx(folder, name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &status) == 0 && S_ISLNK(status.stx_mode));
	printf("at-stat %d\n", fstatat(folder, name, &old, 0) == 0 && S_ISDIR(old.st_mode));
	snprintf(command, sizeof command, "/proc/self/fd/%d", folder);
	printf("descriptor %s\n", link_at(AT_FDCWD, command));
	close(folder);
	folder = open("/", O_PATH | O_DIRECTORY);
	snprintf(command, sizeof command, "sys/class/infiniband/%s/device/numa_node", name);
	printf("from-root-node %s\n", at(folder, command));
	close(folder);
	/* By lists. */
	found = scandir("/sys/class/infiniband", &list, is_dot, alphasort);
	printf("scandir %d %s\n", found, found > 0 ? list[0]->d_name : "nothing");
	folder = open("/sys/class", O_PATH | O_DIRECTORY);
	found = scandirat(folder, "infiniband", &list, is_dot, alphasort);
	printf("scandirat %d %s\n", found, found > 0 ? list[0]->d_name : "nothing");
	printf("opendir %d\n", listed(opendir("/sys/class/infiniband")));
	printf("fdopendir %d\n", listed(fdopendir(openat(folder, "infiniband", O_RDONLY | O_DIRECTORY))));
	close(folder);
	/* By patterns. */
	printf("glob %s\n", matching("/sys/class/infiniband/*"));
	snprintf(command, sizeof command, "%s/ports/[0-9]/link_*", x);
	printf("glob-file %s\n", matching(command));
	snprintf(command, sizeof command, "/sys/class/infiniband*/%s", name);
	printf("glob-parent %s\n", matching(command));
	/* By walks, with and without going to each folder. */
	snprintf(command, sizeof command, "%s/", x);
	printf("fts %s\n", walked(command, FTS_PHYSICAL, "link_layer"));
	printf("fts-nochdir %s\n", walked(command, FTS_PHYSICAL | FTS_NOCHDIR, "link_layer"));
	printf("fts-link %s\n", walked(x, FTS_PHYSICAL | FTS_COMFOLLOW, "node_type"));
	printf("fts-counter %s\n", walked(command, FTS_PHYSICAL, "port_xmit_data"));
	snprintf(command, sizeof command, "%s/device/infiniband", x);
	printf("fts-above %s\n", walked(command, FTS_PHYSICAL, "node_guid"));
	printf("fts-none %s\n", walked("/sys/class/infiniband/none", FTS_PHYSICAL, "x"));
	/* By the file system: 1 is that of sysfs, and the same as /dev has. */
	snprintf(command, sizeof command, "%s/node_type", x);
	printf("statfs %d\n", statfs(command, &system_here) == 0 && system_here.f_type == 0x62656572);
	found = open(command, O_RDONLY);
	printf("fstatfs %d\n", fstatfs(found, &system_here) == 0 && system_here.f_type == 0x62656572);
	close(found);
	printf("statfs-dev %d\n", statfs("/dev/infiniband", &system_here) == 0 && statfs("/dev", &system_there) == 0 && system_here.f_type == system_there.f_type);
	printf("statvfs %d\n", statvfs(command, &system_old) == 0 && system_old.f_blocks == 0);
	snprintf(command, sizeof command, "%s/none", x);
	printf("statfs-none %d\n", statfs(command, &system_here));
	/* By what else takes a path. */
	printf("faccessat %d\n", faccessat(AT_FDCWD, x, R_OK, AT_EACCESS));
	printf("handle %d\n", name_to_handle_at(AT_FDCWD, x, &handle, &mount, 0) == 0 || errno != ENOENT);
	/* By the process's own folder. */
	printf("chdir %d\n", chdir(x));
	printf("here %s\n", here());
	printf("here-glob %s\n", matching("ports/*/link_layer"));
	printf("here-two-above-node %s\n", at(AT_FDCWD, "../../numa_node"));
	printf("up %d\n", chdir("../.."));
	printf("here-above %s\n", here());
	printf("far %d\n", chdir("/sys/class"));
	snprintf(command, sizeof command, "infiniband/%s/../..", name);
	printf("from-class %s\n", real(".", command));
	/* By children. */
	fflush(stdout);
	snprintf(command, sizeof command,
		 "echo child-ls $(ls -l %1$s | sed 's/.* //'); echo child-cat $(cat %1$s/device/numa_node); "
		 "echo child-readlink $(readlink -f %1$s/../..); cd %1$s && echo child-cd $(/bin/pwd -P); "
		 "echo child-stat $(stat -f -c %%T %1$s/); "
		 "echo child-find $(find -L /sys/class/infiniband/ -maxdepth 2 -name node_guid 2>/dev/null | sort | head -n 1)",
		 x);
	return system(command);
}
