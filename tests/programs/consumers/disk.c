/* Fills a disk through libiscsi, in requests of many lengths, and reads it back by others: every byte, three times over.
 *
 * usage: disk URL
 */

#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, BLOCKS = 16 << 11 };

static unsigned char disk[BLOCKS * BLOCK];

static void fail(struct iscsi_context *iscsi, const char *what) {
  printf("%s: %s\n", what, iscsi_get_error(iscsi));
  exit(1);
}

static int at_most(int wanted, int at) { return wanted < BLOCKS - at ? wanted : BLOCKS - at; }

int main(int argc, char **argv) {
  struct iscsi_context *iscsi = iscsi_create_context("iqn.2026-01.test:initiator");
  struct iscsi_url *url = argc == 2 ? iscsi_parse_full_url(iscsi, argv[1]) : NULL;
  if (!url) fail(iscsi, "usage: disk URL");
  iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL);
  iscsi_init_transport(iscsi, url->transport);
  if (iscsi_set_targetname(iscsi, url->target)) fail(iscsi, "name");
  if (iscsi_full_connect_sync(iscsi, url->portal, url->lun)) fail(iscsi, "login");
  for (int round = 0; round < 3; round++) {
    for (int at = 0; at < BLOCKS * BLOCK; at++) disk[at] = (unsigned char)((at >> 9) * 7 + at * 13 + round);
    for (int at = 0, length; at < BLOCKS; at += length) {
      length = at_most(1 + at % 255, at);
      struct scsi_task *task = iscsi_write10_sync(iscsi, url->lun, at, disk + at * BLOCK, length * BLOCK, BLOCK, 0, 0, 0, 0, 0);
      if (!task || task->status != SCSI_STATUS_GOOD) fail(iscsi, "write");
      scsi_free_scsi_task(task);
    }
    for (int at = 0, length; at < BLOCKS; at += length) {
      length = at_most(1 + (at + round) % 200, at);
      struct scsi_task *task = iscsi_read10_sync(iscsi, url->lun, at, length * BLOCK, BLOCK, 0, 0, 0, 0, 0);
      if (!task || task->status != SCSI_STATUS_GOOD) fail(iscsi, "read");
      if (task->datain.size != length * BLOCK || memcmp(task->datain.data, disk + at * BLOCK, length * BLOCK)) {
        printf("round %d: %d blocks at %d are not what was written\n", round, length, at);
        return 1;
      }
      scsi_free_scsi_task(task);
    }
  }
  iscsi_logout_sync(iscsi);
  puts("every byte is right");
  /* No iscsi_destroy_context: in libiscsi 1.19 it frees a connection over RDMA without ending it, and the thread that takes the
   * connection's events writes the next one, the target's disconnect, to what is freed. */
  return 0;
}
