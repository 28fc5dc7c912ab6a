"""Names the RDMA devices of this machine."""

from pyverbs.device import get_device_list

for device in get_device_list():
    print(device.name.decode())
