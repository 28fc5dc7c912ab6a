/* Patterns of bytes, regions of memory with guards around them. */
#include "verify.h"

/* The byte at `offset` of the pattern `seed`: two patterns differ in nearly every byte. */
static uint8_t pattern(uint32_t seed, size_t offset)
{
	uint32_t mixed = (uint32_t)offset * 2654435761u + seed * 40503u;

	mixed ^= mixed >> 15;
	mixed *= 2246822519u;
	return (uint8_t)(mixed >> 24);
}

void fill(uint8_t *target, size_t length, uint32_t seed)
{
	for (size_t i = 0; i < length; i++)
		target[i] = pattern(seed, i);
}

void check(const uint8_t *found, size_t length, uint32_t seed, const char *what)
{
	for (size_t i = 0; i < length; i++)
		if (found[i] != pattern(seed, i))
			fail("%s: byte %zu of %zu is %02x and should be %02x", what, i, length, found[i], pattern(seed, i));
	compared += length;
}

enum { BACKGROUND = 0xbac };

/* What a region of up to that length holds at first: worked out once, since there are thousands of regions. */
static const uint8_t *background(size_t length)
{
	static uint8_t *bytes;
	static size_t known;

	if (length > known) {
		bytes = realloc(bytes, length);
		if (!bytes)
			fail("no memory");
		fill(bytes, length, BACKGROUND);
		known = length;
	}
	return bytes;
}

/* The bytes from `from` to `to` of the memory of a region, guards included, are as they were filled at first. */
void check_untouched(const struct region *region, size_t from, size_t to, const char *what)
{
	const uint8_t *untouched = background(to);

	if (from < to && memcmp(region->memory + from, untouched + from, to - from)) {
		while (from < to - 1 && region->memory[from] == untouched[from])
			from++;
		fail("%s: byte %zu of the region was touched", what, from - GUARD);
	}
	compared += to - from;
}

void check_all_untouched(const struct region *region, const char *what)
{
	check_untouched(region, 0, region->size + 2 * GUARD, what);
}

void restore_range(struct region *region, size_t from, size_t to)
{
	memcpy(region->memory + from, background(to) + from, to - from);
}

void restore(struct region *region)
{
	restore_range(region, 0, region->size + 2 * GUARD);
}

void make_region(struct region *region, struct ibv_pd *pd, size_t size, int access)
{
	region->size = size;
	region->memory = malloc(size + 2 * GUARD);
	if (!region->memory)
		fail("no memory");
	region->data = region->memory + GUARD;
	restore(region);
	region->mr = ibv_reg_mr(pd, region->data, size, access);
	if (!region->mr)
		fail("ibv_reg_mr: %s", strerror(errno));
	region->key = region->mr->rkey;
}

void end_region(struct region *region)
{
	int result = region->mr ? ibv_dereg_mr(region->mr) : 0;

	if (result)
		fail("ibv_dereg_mr: %s", strerror(result));
	free(region->memory);
	memset(region, 0, sizeof(*region));
}

struct ibv_sge element(const struct region *region, size_t offset, size_t length)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)region->data + offset, .length = (uint32_t)length, .lkey = region->mr->lkey,
	};

	return sge;
}

/* Splits `length` bytes at `offset` of a region into up to ELEMENTS pieces that are not equal, the first may be empty. */
int split(const struct region *region, size_t offset, size_t length, int pieces, struct ibv_sge *sges)
{
	int count = 0;

	for (; count < pieces - 1; count++) {
		size_t part = count == 0 ? length / 5 : length / 3;

		sges[count] = element(region, offset, part);
		offset += part;
		length -= part;
	}
	sges[count++] = element(region, offset, length);
	return count;
}

