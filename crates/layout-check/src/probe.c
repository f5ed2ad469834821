/* Prints a line for every fact about the headers. The words HEADERS and FACTS are replaced before
   the program is compiled. */

#include <stddef.h>
#include <stdio.h>

HEADERS

struct fact {
  const char *kind;
  const char *name;
  const char *text;
  unsigned long long first, second;
};

#define LAYOUT(kind, type) {kind, #type, NULL, sizeof(type), _Alignof(type)},
#define TYPE(type) LAYOUT("type", type)
#define RECORD(type) LAYOUT("record", type)
#define FIELD(type, field)                                                     \
  {"field", #type "." #field, NULL, offsetof(type, field),                     \
   sizeof(((type *)0)->field)},
#define ENUMERATOR(name) {"enumerator", #name, NULL, name, sizeof(name)},
#define NUMBER(name) {"number", #name, NULL, name, sizeof(name)},
#define TEXT(name) {"text", #name, name, 0, 0},

static const struct fact facts[] = {
FACTS
};

int main(void) {
  for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
    const struct fact *f = &facts[i];
    if (f->text)
      printf("%s %s %s\n", f->kind, f->name, f->text);
    else
      printf("%s %s %llu %llu\n", f->kind, f->name, f->first, f->second);
  }
  return 0;
}
