/* Finds adapters as NCCL does before it uses them: a line for each device with an active port. */
#include <infiniband/verbs.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };

/* The file's text, or "none". */
static const char *file(const char *folder, const char *name)
{
	static char texts[4][64];
	static int next;
	char path[PATH_MAX + 64], *text = texts[next++ % 4];
	FILE *stream;

	snprintf(path, sizeof path, "%s/%s", folder, name);
	stream = fopen(path, "r");
	if (stream == NULL || fgets(text, sizeof texts[0], stream) == NULL)
		strcpy(text, "none");
	if (stream != NULL)
		fclose(stream);
	text[strcspn(text, "\n")] = 0;
	return text;
}

/* Mb/s of a lane, and lanes, by the codes of verbs. */
static int speed(const struct ibv_port_attr *port)
{
	static const int lanes[] = {1, 4, 8, 12, 2}, speeds[] = {2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000};
	int width = 0, rate = 0;

	while (width < 4 && !(port->active_width >> width & 1))
		width++;
	while (rate < 7 && !(port->active_speed >> rate & 1))
		rate++;
	return lanes[width] * speeds[rate];
}

/* Whether a part of a path is the address of a PCI device: 0000:17:00.0. */
static int is_address(const char *part)
{
	unsigned domain, bus, slot, function;
	int length = 0;

	return sscanf(part, "%x:%x:%x.%x%n", &domain, &bus, &slot, &function, &length) == 4 && part[length] == 0;
}

/* The place in the topology: what the adapter is, and every parent up to the root of its bus. */
static void topology(const char *place)
{
	char path[PATH_MAX], port[PATH_MAX + 4];
	char *slash;

	snprintf(path, sizeof path, "%s", place);
	snprintf(port, sizeof port, "%s/..", path);
	printf(" class %s near %s", file(path, "class"), file(path, "numa_node"));
	printf(" link %s x%s", file(path, "max_link_speed"), file(path, "max_link_width"));
	printf(" port %s x%s", file(port, "max_link_speed"), file(port, "max_link_width"));
	printf(" above");
	while ((slash = strrchr(path, '/')) != NULL && slash != path) {
		*slash = 0;
		slash = strrchr(path, '/');
		if (slash == NULL)
			break;
		printf(" %s", slash + 1);
		if (!is_address(slash + 1))
			return;
		printf(" (%s)", file(path, "class"));
	}
	printf(" no root");
}

int main(void)
{
	static char places[MOST][PATH_MAX];
	int count = 0, used = 0, index, before;
	struct ibv_device **list = ibv_get_device_list(&count);

	for (index = 0; index < count && used < MOST; index++) {
		const char *name = ibv_get_device_name(list[index]);
		struct ibv_context *context = ibv_open_device(list[index]);
		struct ibv_device_attr attributes;
		struct ibv_port_attr port;
		char path[PATH_MAX];
		int real = 0;

		if (context == NULL || ibv_query_device(context, &attributes) != 0)
			continue;
		for (int number = 1; number <= attributes.phys_port_cnt; number++) {
			if (ibv_query_port(context, number, &port) != 0 || port.state != IBV_PORT_ACTIVE)
				continue;
			snprintf(path, sizeof path, "/sys/class/infiniband/%s/device", name);
			if (realpath(path, places[used]) == NULL)
				strcpy(places[used], "none");
			printf("%s speed %d layer %d", name, speed(&port), port.link_layer);
			/* Functions of one adapter are one. */
			snprintf(path, sizeof path, "%s", places[used]);
			places[used][strlen(places[used]) - 1] = '0';
			for (before = 0; before < used; before++)
				real += strcmp(places[before], places[used]) == 0;
			printf(" at %s port %d", places[used], real);
			topology(path);
			printf("\n");
			used++;
		}
		ibv_close_device(context);
	}
	ibv_free_device_list(list);
	return used == 0;
}
