/* Compares each file of devices with what verbs say: a line for each device, its state and its IPv4 addresses; differences go to standard error. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static const char *device;
static int differences;

/* The file's text, or "none". */
static const char *file(const char *name)
{
	static char text[256];
	char path[PATH_MAX];
	FILE *stream;

	snprintf(path, sizeof path, "/sys/class/infiniband/%s/%s", device, name);
	stream = fopen(path, "r");
	if (stream == NULL || fgets(text, sizeof text, stream) == NULL)
		strcpy(text, "none");
	if (stream != NULL)
		fclose(stream);
	text[strcspn(text, "\n")] = 0;
	return text;
}

static void __attribute__((format(printf, 2, 3))) same(const char *name, const char *format, ...)
{
	char expected[256];
	const char *found = file(name);
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(expected, sizeof expected, format, arguments);
	va_end(arguments);
	if (strcmp(found, expected) != 0) {
		fprintf(stderr, "%s/%s: verbs say %s, the file %s\n", device, name, expected, found);
		differences++;
	}
}

static void count(const char *name, int expected)
{
	char path[PATH_MAX];
	int found = 0;
	struct dirent *entry;
	DIR *folder;

	snprintf(path, sizeof path, "/sys/class/infiniband/%s/%s", device, name);
	folder = opendir(path);
	while (folder != NULL && (entry = readdir(folder)) != NULL)
		found += entry->d_name[0] != '.';
	if (folder != NULL)
		closedir(folder);
	if (found != expected) {
		fprintf(stderr, "%s/%s: verbs know %d, the folder %d\n", device, name, expected, found);
		differences++;
	}
}

static const char *words(const void *bytes, int length)
{
	static char text[64];
	const unsigned char *byte = bytes;
	int at, end = 0;

	for (at = 0; at < length; at += 2)
		end += sprintf(text + end, "%s%02x%02x", at ? ":" : "", byte[at], byte[at + 1]);
	return text;
}

/* As the kernel's rate_show; speeds in units of 100 Mb/s for one lane. */
static void rate(const struct ibv_port_attr *port)
{
	int width = port->active_width == 1 ? 1 : port->active_width == 2 ? 4 : port->active_width == 4 ? 8 : port->active_width == 8 ? 12 : 2;
	static const struct {
		int code, speed;
		const char *name;
	} speeds[] = {{1, 25, "SDR"}, {2, 50, "DDR"}, {4, 100, "QDR"}, {8, 100, "FDR10"}, {16, 140, "FDR"}, {32, 250, "EDR"}, {64, 500, "HDR"}, {128, 1000, "NDR"}};
	unsigned at;

	for (at = 0; at < sizeof speeds / sizeof *speeds; at++)
		if (speeds[at].code == port->active_speed) {
			int all = speeds[at].speed * width;

			same("ports/1/rate", "%d%s Gb/sec (%dX %s)", all / 10, all % 10 ? ".5" : "", width, speeds[at].name);
			return;
		}
	fprintf(stderr, "%s: speed %d\n", device, port->active_speed);
	differences++;
}

static void table(struct ibv_context *context, int length)
{
	int index, kinds = 0, interfaces = 0;

	for (index = 0; index < length; index++) {
		struct ibv_gid_entry entry;
		char name[64], interface[IF_NAMESIZE], address[INET_ADDRSTRLEN];
		union ibv_gid gid;
		int error = ibv_query_gid_ex(context, 1, index, &entry, 0);

		if (error != 0 && error != ENODATA)
			differences++;
		if (ibv_query_gid(context, 1, index, &gid) != 0)
			differences++;
		snprintf(name, sizeof name, "ports/1/gids/%d", index);
		same(name, "%s", words(gid.raw, 16));
		snprintf(name, sizeof name, "ports/1/gid_attrs/types/%d", index);
		same(name, "%s", error ? "none" : entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "IB/RoCE v1");
		snprintf(name, sizeof name, "ports/1/gid_attrs/ndevs/%d", index);
		if (error || entry.ndev_ifindex == 0) {
			same(name, "none");
		} else {
			same(name, "%s", if_indextoname(entry.ndev_ifindex, interface) ? interface : "gone");
			interfaces++;
		}
		kinds += error == 0;
		if (error == 0 && memcmp(gid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12) == 0)
			printf(" %s", inet_ntop(AF_INET, gid.raw + 12, address, sizeof address));
	}
	count("ports/1/gids", length);
	count("ports/1/gid_attrs/types", kinds);
	if (interfaces > 0 || kinds == 0)
		count("ports/1/gid_attrs/ndevs", interfaces);
}

/* A file of the machine's own, as a string. */
static const char *own(const char *path)
{
	static char text[256];
	FILE *stream = fopen(path, "r");

	if (stream == NULL || fgets(text, sizeof text, stream) == NULL)
		strcpy(text, "none");
	if (stream != NULL)
		fclose(stream);
	text[strcspn(text, "\n")] = 0;
	return text;
}

/* The lines of such a file in one. */
static const char *event(const char *name)
{
	static char text[512];
	char path[PATH_MAX];
	FILE *stream;
	size_t at, length;

	snprintf(path, sizeof path, "/sys/class/infiniband/%s/%s", device, name);
	stream = fopen(path, "r");
	length = stream ? fread(text, 1, sizeof text - 1, stream) : 0;
	if (stream != NULL)
		fclose(stream);
	text[length] = 0;
	for (at = 0; at < length; at++)
		if (text[at] == '\n')
			text[at] = ' ';
	return text;
}

static void says(const char *what, const char *found, const char *expected)
{
	if (strcmp(found, expected) != 0) {
		fprintf(stderr, "%s, %s: expected %s, found %s\n", device, what, expected, found);
		differences++;
	}
}

/* The numbers of the file that stands for the device in /dev, as udev and tools for containers ask for them. */
static void place(const char *verbs)
{
	char path[PATH_MAX], expected[512];
	struct stat status;

	snprintf(path, sizeof path, "/dev/infiniband/%s", verbs);
	if (stat(path, &status) != 0 || !S_ISCHR(status.st_mode)) {
		fprintf(stderr, "%s: no device\n", path);
		exit(2);
	}
	snprintf(path, sizeof path, "../../infiniband_verbs/%s/dev", verbs);
	same(path, "%u:%u", major(status.st_rdev), minor(status.st_rdev));
	snprintf(path, sizeof path, "../../infiniband_verbs/%s/uevent", verbs);
	snprintf(expected, sizeof expected, "MAJOR=%u MINOR=%u DEVNAME=infiniband/%s ", major(status.st_rdev), minor(status.st_rdev), verbs);
	says("uevent of verbs", event(path), expected);
}

/* What the device is part of: an adapter at a place, or what stands for one. */
static void adapter(const struct ibv_device_attr *attributes, const char *verbs)
{
	char path[PATH_MAX], parent[PATH_MAX], expected[512], alias[128], node[64];
	const char *slot;
	/* A device without a vendor of its own has the number of nobody there, and none here. */
	unsigned vendor = attributes->vendor_id == 0xffffff ? 0 : attributes->vendor_id;

	count("device/infiniband", 1);
	snprintf(path, sizeof path, "device/infiniband/%s/fw_ver", device);
	same(path, "%s", attributes->fw_ver);
	snprintf(path, sizeof path, "device/infiniband_verbs/%s/ibdev", verbs);
	same(path, "%s", device);
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/device", device);
	if (realpath(path, parent) == NULL || (slot = strrchr(parent, '/')) == NULL) {
		fprintf(stderr, "%s/device: %s\n", device, strerror(errno));
		exit(2);
	}
	slot++;
	snprintf(node, sizeof node, "%s", file("device/numa_node"));
	snprintf(path, sizeof path, "/sys/devices/system/node/node%s/cpulist", node);
	if (strcmp(node, "-1") == 0)
		strcpy(path, "/sys/devices/system/cpu/online");
	same("device/local_cpulist", "%s", own(path));
	if (strcmp(node, "-1") != 0) {
		snprintf(path, sizeof path, "/sys/devices/system/node/node%s/cpumap", node);
		same("device/local_cpus", "%s", own(path));
	}
	if (strcmp(file("device/class"), "none") == 0) {
		same("device/modalias", "platform:adverb");
		says("uevent", event("device/uevent"), "MODALIAS=platform:adverb ");
		same("device/vendor", "none");
		return;
	}
	same("device/class", "0x020000");
	same("device/vendor", "0x%04x", vendor);
	same("device/device", "0x%04x", attributes->vendor_part_id);
	same("device/subsystem_vendor", "0x0000");
	same("device/subsystem_device", "0x0000");
	snprintf(alias, sizeof alias, "pci:v%08Xd%08Xsv00000000sd00000000bc02sc00i00", vendor, attributes->vendor_part_id);
	same("device/modalias", "%s", alias);
	snprintf(expected, sizeof expected, "PCI_CLASS=20000 PCI_ID=%04X:%04X PCI_SUBSYS_ID=0000:0000 PCI_SLOT_NAME=%s MODALIAS=%s ", vendor,
		 attributes->vendor_part_id, slot, alias);
	says("uevent", event("device/uevent"), expected);
	printf(" at %s near %s by %04x", slot, node, vendor);
}

static void compare(struct ibv_device *found)
{
	struct ibv_context *context = ibv_open_device(found);
	struct ibv_device_attr attributes;
	struct ibv_port_attr port;
	char name[64], path[PATH_MAX];
	uint64_t guid = ibv_get_device_guid(found);
	int index;

	if (context == NULL || ibv_query_device(context, &attributes) != 0 || ibv_query_port(context, 1, &port) != 0) {
		fprintf(stderr, "%s: no answer\n", device);
		exit(2);
	}
	same("node_type", "%d: %s", found->node_type, found->node_type == IBV_NODE_RNIC ? "RNIC" : "CA");
	same("node_guid", "%s", words(&guid, 8));
	same("node_guid", "%s", words(&attributes.node_guid, 8));
	same("sys_image_guid", "%s", words(&attributes.sys_image_guid, 8));
	same("fw_ver", "%s", attributes.fw_ver);
	same("board_id", "none");
	snprintf(path, sizeof path, "../../infiniband_verbs/%s/ibdev", found->dev_name);
	same(path, "%s", device);
	place(found->dev_name);
	count("ports", attributes.phys_port_cnt);
	same("ports/1/state", "%d: %s", port.state, port.state == IBV_PORT_ACTIVE ? "ACTIVE" : "DOWN");
	same("ports/1/phys_state", "%d: %s", port.phys_state, port.phys_state == 5 ? "LinkUp" : "Disabled");
	same("ports/1/link_layer", "%s", port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand");
	same("ports/1/lid", "0x%x", port.lid);
	same("ports/1/lid_mask_count", "%d", port.lmc);
	same("ports/1/sm_lid", "0x%x", port.sm_lid);
	same("ports/1/sm_sl", "%d", port.sm_sl);
	/* The kernel keeps this one for verbs. */
	same("ports/1/cap_mask", "0x%08x", port.port_cap_flags & ~IBV_PORT_IP_BASED_GIDS);
	rate(&port);
	for (index = 0; index < port.pkey_tbl_len; index++) {
		__be16 key;

		if (ibv_query_pkey(context, 1, index, &key) != 0)
			differences++;
		snprintf(name, sizeof name, "ports/1/pkeys/%d", index);
		same(name, "0x%04x", ntohs(key));
	}
	count("ports/1/pkeys", port.pkey_tbl_len);
	printf("%s %d", device, port.state);
	table(context, port.gid_tbl_len);
	adapter(&attributes, found->dev_name);
	printf("\n");
	ibv_close_device(context);
}

int main(void)
{
	int at, devices = 0;
	struct ibv_device **list = ibv_get_device_list(&devices);

	for (at = 0; at < devices; at++) {
		device = ibv_get_device_name(list[at]);
		compare(list[at]);
	}
	ibv_free_device_list(list);
	return differences != 0 || devices == 0;
}
