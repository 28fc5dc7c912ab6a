// A rank of gloo over its verbs transport: sums of changing contents, by queue pairs that are made, used and torn down again.
//
// usage: gloo RANK RANKS FOLDER DEVICE        the ranks meet by files in the folder
//
// Over any verbs gloo is without races only as far as its caller keeps two rules; this program does.
//
// 1. gloo ends the program if a buffer goes while a send from it is not complete, and its algorithms do not wait for their last ones:
//    a peer's message may come sooner than the completion of what was sent to it at the same time. So this waits.
// 2. The thread of a gloo device wakes who waits for a message, and uses the pair after that: it posts the next receive, and looks for
//    more. Nothing tells when it has done so. Who has seen the last message and destroys the pair takes it away from that thread, which
//    posts to freed memory then, or to a new pair that lies there: a crash, or a receive too many. So pairs that this thread serves
//    stay until the process ends. A pair in synchronous mode is polled by its user, and the thread gets one event of it, that of its first
//    completion. Events come one after the other: when the thread has served a later one of another pair, this pair may go.

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allreduce_ring.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/ibverbs/device.h>

constexpr int ROUNDS = 20;

struct Ring : gloo::AllreduceRing<float> {
  using AllreduceRing::AllreduceRing;

  // The ring has as many steps as there are neighbours, and a notification in each.
  void run_to_the_end() {
    run();
    for (int step = 0; step < contextSize_ - 1; step++) sendNotificationBuf_->waitSend();
  }
};

// Sums of them are exact.
static float value(int rank, size_t at, int round) { return float((rank + 1) * int(at % 1000 + 1) + round); }

using Context = std::shared_ptr<gloo::rendezvous::Context>;
using Device = std::shared_ptr<gloo::transport::Device>;

// Connects the ranks by queue pairs of their own; `name` is for these alone.
static Context connect(int rank, int ranks, const std::string &name, gloo::rendezvous::Store &files, Device &device, bool synchronous) {
  gloo::rendezvous::PrefixStore store(name, files);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->connectFullMesh(store, device);
  if (!synchronous) return context;
  for (int peer = 0; peer < ranks; peer++)
    if (peer != rank) context->getPair(peer)->setSync(true, true);
  // A peer sends as soon as it has buffers: not before everybody polls for himself.
  std::vector<std::string> polls;
  for (int of = 0; of < ranks; of++) polls.push_back("polls" + std::to_string(of));
  store.set(polls[rank], {1});
  store.wait(polls);
  return context;
}

static bool sums_are_right(const Context &context, size_t count) {
  std::vector<float> data(count);
  Ring ring(context, {data.data()}, int(count));
  for (int round = 0; round < ROUNDS; round++) {
    for (size_t at = 0; at < count; at++) data[at] = value(context->rank, at, round);
    ring.run_to_the_end();
    for (size_t at = 0; at < count; at++) {
      float wanted = 0;
      for (int of = 0; of < context->size; of++) wanted += value(of, at, round);
      if (data[at] == wanted) continue;
      std::printf("%zu elements, round %d: element %zu is %f, not %f\n", count, round, at, data[at], wanted);
      return false;
    }
  }
  return true;
}

int main(int, char **argv) {
  const int rank = std::atoi(argv[1]), ranks = std::atoi(argv[2]);
  std::printf("rank %d begins\n", rank);
  std::fflush(stdout);
  mkdir(argv[3], 0700);
  gloo::transport::ibverbs::attr attributes{argv[4], 1, 0};
  // Never destroyed, as the pairs that the device's thread serves.
  auto &device = *new Device(gloo::transport::ibverbs::CreateDevice(attributes));
  auto &served = *new std::vector<Context>;
  gloo::rendezvous::FileStore files(argv[3]);
  for (size_t count : {1, 1000, 200000, 7, 50000}) {
    const auto name = std::to_string(count);
    auto polled = connect(rank, ranks, name + "polled", files, device, true);
    if (!sums_are_right(polled, count)) return 1;
    served.push_back(connect(rank, ranks, name + "served", files, device, false));
    if (!sums_are_right(served.back(), count)) return 1;
    // Here the last pairs but one are torn down.
  }
  std::printf("rank %d of %d: all well\n", rank, ranks);
}
