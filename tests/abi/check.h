/* How the programs here check what a call does: the first thing that does not hold ends them. */

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How much was checked, by all threads. */
static atomic_int checks;
/* Where it was done last: for who is told that it takes too long. */
static volatile int last_line;

#define CHECK(condition) do { \
	checks++; \
	last_line = __LINE__; \
	if (!(condition)) { \
		fprintf(stderr, "%s:%d: %s does not hold (errno %d: %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno)); \
		exit(1); \
	} \
} while (0)

/* A call that returns an error number. */
#define RETURNS(number, call) CHECK((call) == (number))
/* A call that returns -1 or NULL and sets errno. */
#define FAILS(number, call) do { errno = 0; CHECK((call) == -1); CHECK(errno == (number)); } while (0)
#define NO_OBJECT(number, call) do { errno = 0; CHECK((call) == NULL); CHECK(errno == (number)); } while (0)
