/* Names the RDMA devices of this machine. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	int count;
	struct ibv_device **devices = ibv_get_device_list(&count);

	if (!devices)
		return perror("ibv_get_device_list"), 1;
	for (int i = 0; i < count; i++)
		printf("%s\n", ibv_get_device_name(devices[i]));
	ibv_free_device_list(devices);
	return count == 0;
}
