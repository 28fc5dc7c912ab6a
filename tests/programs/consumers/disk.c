/* Fills a disk through libiscsi, in requests of many lengths, and reads it back by others: every byte, three times over.
 *
 * usage: disk URL MEBIBYTES
 */

#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 512, PATIENCE_MS = 60000 };

static struct iscsi_context *iscsi;

static void fail(const char *what) {
  printf("%s: %s\n", what, iscsi_get_error(iscsi));
  exit(1);
}

/* What the target says to a request. */
struct answer {
  int status;
  struct scsi_task *task;
};
enum { NOT_YET = -1 };

static void answered(struct iscsi_context *context, int status, void *task, void *private) {
  (void)context;
  *(struct answer *)private = (struct answer){status, task};
}

/* libiscsi's own loop, in its calls that wait, gives up over RDMA where a second brings no event. */
static void wait_for(struct answer *answer, const char *what) {
  while (answer->status == NOT_YET) {
    struct pollfd events = {.fd = iscsi_get_fd(iscsi), .events = (short)iscsi_which_events(iscsi)};
    if (poll(&events, 1, PATIENCE_MS) != 1 || iscsi_service(iscsi, events.revents)) fail(what);
  }
  if (answer->status != SCSI_STATUS_GOOD) fail(what);
}

static int at_most(int wanted, int at, int end) { return wanted < end - at ? wanted : end - at; }

int main(int argc, char **argv) {
  iscsi = iscsi_create_context("iqn.2026-01.test:initiator");
  struct iscsi_url *url = argc == 3 ? iscsi_parse_full_url(iscsi, argv[1]) : NULL;
  if (!url) fail("usage: disk URL MEBIBYTES");
  int blocks = atoi(argv[2]) << 11, lun = url->lun;
  unsigned char *disk = malloc((size_t)blocks * BLOCK);
  iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL);
  iscsi_init_transport(iscsi, url->transport);
  /* Over RDMA, libiscsi 1.19 announces immediate data and sends none, for which Linux's target ends the connection. */
  iscsi_set_immediate_data(iscsi, ISCSI_IMMEDIATE_DATA_NO);
  if (iscsi_set_targetname(iscsi, url->target)) fail("name");
  struct answer answer = {.status = NOT_YET};
  if (iscsi_full_connect_async(iscsi, url->portal, lun, answered, &answer)) fail("connect");
  wait_for(&answer, "login");
  for (int round = 0; round < 3; round++) {
    for (int at = 0; at < blocks * BLOCK; at++) disk[at] = (unsigned char)((at >> 9) * 7 + at * 13 + round);
    for (int at = 0, length; at < blocks; at += length) {
      length = at_most(1 + at % 255, at, blocks);
      answer.status = NOT_YET;
      if (!iscsi_write10_task(iscsi, lun, at, disk + at * BLOCK, length * BLOCK, BLOCK, 0, 0, 0, 0, 0, answered, &answer)) fail("write");
      wait_for(&answer, "write");
      scsi_free_scsi_task(answer.task);
    }
    for (int at = 0, length; at < blocks; at += length) {
      length = at_most(1 + (at + round) % 200, at, blocks);
      answer.status = NOT_YET;
      if (!iscsi_read10_task(iscsi, lun, at, length * BLOCK, BLOCK, 0, 0, 0, 0, 0, answered, &answer)) fail("read");
      wait_for(&answer, "read");
      if (answer.task->datain.size != length * BLOCK || memcmp(answer.task->datain.data, disk + at * BLOCK, length * BLOCK)) {
        printf("round %d: %d blocks at %d are not what was written\n", round, length, at);
        return 1;
      }
      scsi_free_scsi_task(answer.task);
    }
  }
  answer.status = NOT_YET;
  if (iscsi_logout_async(iscsi, answered, &answer)) fail("logout");
  wait_for(&answer, "logout");
  puts("every byte is right");
  /* No iscsi_destroy_context: in libiscsi 1.19 it frees a connection over RDMA without ending it, and the thread that takes the
   * connection's events writes the next one, the target's disconnect, to what is freed. */
  return 0;
}
