/* Does what programs do with MPI, between all ranks, and checks every byte and every result: messages of all protocols of a library
 * (eager and rendezvous, of one piece and of many), collectives, one-sided access. Ends with status 0 if all ranks found all well.
 *
 * usage: check [without-replacing]      where the library does one-sided access by messages, and what it replaces may be what it fetches */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 3 << 20, MANY = 200, PIECES = 1000 };

static const int sizes[] = {0, 1, 7, 64, 1000, 8191, 8192, 65536, 300001, LONGEST};
static int rank, ranks, problems, replacing;

static void check(int right, const char *what, long detail)
{
	if (right)
		return;
	if (problems++ < 5)
		fprintf(stderr, "rank %d: %s is wrong (%ld)\n", rank, what, detail);
}

static unsigned char expected(int seed, int i)
{
	return (unsigned char)(seed * 31 + i * 7 + (i >> 8));
}

static void fill(unsigned char *bytes, int length, int seed)
{
	for (int i = 0; i < length; i++)
		bytes[i] = expected(seed, i);
}

static void compare(const unsigned char *bytes, int length, int seed, const char *what)
{
	for (int i = 0; i < length; i++) {
		if (bytes[i] != expected(seed, i)) {
			check(0, what, i);
			return;
		}
	}
}

/* Every rank sends to every rank, itself included; each message finds its receive posted before, or comes unexpected. */
static void messages(unsigned char *out, unsigned char *in)
{
	for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
		for (int distance = 0; distance < ranks; distance++) {
			int to = (rank + distance) % ranks, from = (rank - distance + ranks) % ranks, length;
			MPI_Request request;
			MPI_Status status;
			fill(out, sizes[n], rank * ranks + to);
			memset(in, 0xee, sizes[n]);
			if (n % 2) {
				MPI_Isend(out, sizes[n], MPI_BYTE, to, (int)n, MPI_COMM_WORLD, &request);
				MPI_Probe(from, (int)n, MPI_COMM_WORLD, &status);
				MPI_Recv(in, sizes[n], MPI_BYTE, from, (int)n, MPI_COMM_WORLD, &status);
			} else {
				MPI_Irecv(in, sizes[n], MPI_BYTE, from, (int)n, MPI_COMM_WORLD, &request);
				MPI_Send(out, sizes[n], MPI_BYTE, to, (int)n, MPI_COMM_WORLD);
			}
			MPI_Wait(&request, n % 2 ? MPI_STATUS_IGNORE : &status);
			MPI_Get_count(&status, MPI_BYTE, &length);
			check(length == sizes[n], "the length of a message", length);
			compare(in, sizes[n], from * ranks + rank, "a message");
		}
	}
}

/* Many messages under way at once, received in the opposite order; and pieces that lie apart. */
static void outstanding(void)
{
	int next = (rank + 1) % ranks, last = (rank - 1 + ranks) % ranks;
	long sent[MANY], received[MANY];
	MPI_Request requests[2 * MANY];
	for (int i = 0; i < MANY; i++) {
		sent[i] = rank * 1000L + i;
		MPI_Irecv(&received[MANY - 1 - i], 1, MPI_LONG, last, MANY - 1 - i, MPI_COMM_WORLD, &requests[i]);
	}
	for (int i = 0; i < MANY; i++)
		MPI_Isend(&sent[i], 1, MPI_LONG, next, i, MPI_COMM_WORLD, &requests[MANY + i]);
	MPI_Waitall(2 * MANY, requests, MPI_STATUSES_IGNORE);
	for (int i = 0; i < MANY; i++)
		check(received[i] == last * 1000L + i, "one of many messages", i);

	static int apart[PIECES][3], together[PIECES];
	MPI_Datatype column;
	for (int i = 0; i < PIECES; i++)
		apart[i][0] = rank * PIECES + i;
	MPI_Type_vector(PIECES, 1, 3, MPI_INT, &column);
	MPI_Type_commit(&column);
	MPI_Sendrecv(apart, 1, column, next, 0, together, PIECES, MPI_INT, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Type_free(&column);
	for (int i = 0; i < PIECES; i++)
		check(together[i] == last * PIECES + i, "a message in pieces", i);
}

static void collectives(unsigned char *out, unsigned char *in)
{
	for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
		int root = (int)n % ranks, share = sizes[n] / ranks;
		if (rank == root)
			fill(in, sizes[n], root);
		else
			memset(in, 0xee, sizes[n]);
		MPI_Bcast(in, sizes[n], MPI_BYTE, root, MPI_COMM_WORLD);
		compare(in, sizes[n], root, "a broadcast");

		for (int to = 0; to < ranks; to++)
			fill(out + to * share, share, rank * ranks + to);
		MPI_Alltoall(out, share, MPI_BYTE, in, share, MPI_BYTE, MPI_COMM_WORLD);
		for (int from = 0; from < ranks; from++)
			compare(in + from * share, share, from * ranks + rank, "all to all");

		fill(out, share, rank);
		MPI_Allgather(out, share, MPI_BYTE, in, share, MPI_BYTE, MPI_COMM_WORLD);
		for (int from = 0; from < ranks; from++)
			compare(in + from * share, share, from, "what all gathered");
		memset(out, 0xee, share);
		MPI_Scatter(in, share, MPI_BYTE, out, share, MPI_BYTE, root, MPI_COMM_WORLD);
		compare(out, share, rank, "what was scattered");
		MPI_Gather(out, share, MPI_BYTE, in, share, MPI_BYTE, root, MPI_COMM_WORLD);
		for (int from = 0; rank == root && from < ranks; from++)
			compare(in + from * share, share, from, "what was gathered");
	}
	for (int count = 1; count <= LONGEST / 8; count *= 64) {
		double *mine = (double *)out, *all = (double *)in;
		for (int i = 0; i < count; i++)
			mine[i] = rank + i;
		MPI_Allreduce(mine, all, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < count; i++)
			check(all[i] == ranks * (ranks - 1) / 2 + (double)ranks * i, "a sum", i);
		MPI_Scan(mine, all, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
		check(all[count - 1] == rank + count - 1, "a maximum", count);
	}
	int one = 1, before = 0;
	MPI_Exscan(&one, &before, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	check(rank == 0 || before == rank, "a scan", before);
	MPI_Barrier(MPI_COMM_WORLD);
}

/* Writes, reads and sums in the memory of others, between fences, under locks, and by atomic operations. */
static void one_sided(unsigned char *out, unsigned char *in)
{
	int next = (rank + 1) % ranks, last = (rank - 1 + ranks) % ranks;
	unsigned char *window;
	MPI_Win win;
	MPI_Win_allocate(LONGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
	for (unsigned n = 0; n < sizeof sizes / sizeof *sizes; n++) {
		fill(out, sizes[n], rank);
		MPI_Win_fence(0, win);
		memset(window, 0xee, sizes[n]);
		MPI_Win_fence(0, win);
		MPI_Put(out, sizes[n], MPI_BYTE, next, 0, sizes[n], MPI_BYTE, win);
		MPI_Win_fence(0, win);
		compare(window, sizes[n], last, "what was put here");
		MPI_Get(in, sizes[n], MPI_BYTE, next, 0, sizes[n], MPI_BYTE, win);
		MPI_Win_fence(0, win);
		compare(in, sizes[n], rank, "what was fetched");
		/* Libraries read what is there and write what replaces it, without a fence between the two. */
		for (int i = 0; replacing && i < 5; i++) {
			fill(out, sizes[n], rank + i + 1);
			memset(in, 0xee, sizes[n]);
			MPI_Get_accumulate(out, sizes[n], MPI_BYTE, in, sizes[n], MPI_BYTE, next, 0, sizes[n], MPI_BYTE, MPI_REPLACE, win);
			MPI_Win_fence(0, win);
			compare(in, sizes[n], rank + i, "what was replaced");
			compare(window, sizes[n], last + i + 1, "what replaced it");
			MPI_Win_fence(0, win);
		}
	}
	MPI_Win_free(&win);

	/* Three counters in the memory of rank 0, with which everybody works at once. */
	long *counters, mine = rank + 1, was = 0;
	const int rounds = 20;
	MPI_Win_allocate(3 * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &counters, &win);
	memset(counters, 0, 3 * sizeof(long));
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; i < rounds; i++) {
		MPI_Win_lock(i % 2 ? MPI_LOCK_EXCLUSIVE : MPI_LOCK_SHARED, 0, 0, win);
		MPI_Accumulate(&mine, 1, MPI_LONG, 0, 0, 1, MPI_LONG, MPI_SUM, win);
		MPI_Win_unlock(0, win);
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
		MPI_Fetch_and_op(&mine, &was, MPI_LONG, 0, 1, MPI_SUM, win);
		MPI_Win_flush(0, win);
		check(was >= i * mine, "what a fetch-and-add found", was);
		long seen = 0, found;
		do { /* adds by compare-and-swap */
			long wanted = seen + 1, expect = seen;
			MPI_Compare_and_swap(&wanted, &expect, &found, MPI_LONG, 0, 2, win);
			MPI_Win_flush(0, win);
			if (found == expect)
				break;
			seen = found;
		} while (1);
		MPI_Win_unlock(0, win);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
		long all = (long)rounds * ranks * (ranks + 1) / 2;
		check(counters[0] == all, "an accumulated sum", counters[0]);
		check(counters[1] == all, "a sum of fetch-and-adds", counters[1]);
		check(counters[2] == (long)rounds * ranks, "a count of swaps", counters[2]);
		MPI_Win_unlock(0, win);
	}
	MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
	int all;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	replacing = argc == 1;
	unsigned char *out = malloc(LONGEST), *in = malloc(LONGEST);
	messages(out, in);
	outstanding();
	collectives(out, in);
	one_sided(out, in);
	MPI_Allreduce(&problems, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0 && all == 0)
		printf("%d ranks: all well\n", ranks);
	free(out);
	free(in);
	MPI_Finalize();
	return all != 0;
}
