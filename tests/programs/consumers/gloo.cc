// A rank of gloo over its verbs transport: sums of changing contents, by queue pairs that are made, used and torn down again.
//
// usage: gloo RANK RANKS FOLDER DEVICE        the ranks meet by files in the folder
//
// gloo ends the program if a buffer goes while a send from it is not complete, and its algorithms do not wait for their last ones:
// a peer's message may come sooner than the completion of what was sent to it at the same time, on adapters, too. So this waits.

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

int main(int, char **argv) {
  const int rank = std::atoi(argv[1]), ranks = std::atoi(argv[2]);
  std::printf("rank %d begins\n", rank);
  std::fflush(stdout);
  mkdir(argv[3], 0700);
  gloo::transport::ibverbs::attr attributes{argv[4], 1, 0};
  auto device = gloo::transport::ibverbs::CreateDevice(attributes);
  gloo::rendezvous::FileStore files(argv[3]);
  for (size_t count : {1, 1000, 200000, 7, 50000}) {
    gloo::rendezvous::PrefixStore store(std::to_string(count), files);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
    context->connectFullMesh(store, device);
    std::vector<float> data(count);
    Ring ring(context, {data.data()}, int(count));
    for (int round = 0; round < ROUNDS; round++) {
      for (size_t at = 0; at < count; at++) data[at] = value(rank, at, round);
      ring.run_to_the_end();
      for (size_t at = 0; at < count; at++) {
        float wanted = 0;
        for (int of = 0; of < ranks; of++) wanted += value(of, at, round);
        if (data[at] == wanted) continue;
        std::printf("%zu elements, round %d: element %zu is %f, not %f\n", count, round, at, data[at], wanted);
        return 1;
      }
    }
  }
  std::printf("rank %d of %d: all well\n", rank, ranks);
}
