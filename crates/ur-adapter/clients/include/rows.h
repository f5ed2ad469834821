/* A table of calls and their expected results. Each row is checked, and each failed row is
   printed. */
#ifndef ROWS_H
#define ROWS_H

#include "ur.h"

static int rows, wrong;

/* The part of the table to which the following rows belong. */
static const char *part = "";

/* Whether rows that pass are printed too. */
static bool names_rows;

/* A call that must fail with UR_RESULT_ERROR_`error`. */
#define FAILS(error, call) (HERE(#call), row(PLACE(#call), UR_RESULT_ERROR_##error, (call)))

/* A call that must succeed. */
#define WORKS(call) (HERE(#call), row(PLACE(#call), UR_RESULT_SUCCESS, (call)))

/* A call that must fail. Any error is accepted. */
#define REFUSES(call) (HERE(#call), refused(PLACE(#call), (call)))

/* A condition that must hold. */
#define HOLDS(condition) (HERE(#condition), held(PLACE(#condition), (condition)))

static inline void report(bool right, const char *row, const char *why) {
  rows++;
  if (right && names_rows)
    printf("%s: %s: as it should\n", part, row);
  if (right)
    return;
  wrong++;
  fprintf(stderr, "wrong: %s: %s: %s\n", part, row, why);
}

static inline void row(const char *what, ur_result_t expected, ur_result_t found) {
  char why[200];
  int length = snprintf(why, sizeof why, "%s", name_of(found));
  snprintf(why + length, sizeof why - (size_t)length, " instead of %s", name_of(expected));
  report(found == expected, what, why);
}

static inline void refused(const char *what, ur_result_t found) {
  report(found != UR_RESULT_SUCCESS, what, "succeeds");
}

static inline void held(const char *what, bool holds) { report(holds, what, "does not hold"); }

#endif
