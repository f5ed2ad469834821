/* Programs that use each other's functions and variables. They are linked after each program was
   created. */
#include "kernels.h"

enum { COUNT = 256 };

/* A program that uses a function and a variable from the other program. */
static const char *user_c = "extern uint more(uint x);"
                            "kernel void use(global uint *to, uint value, uint count) {"
                            "  size_t i = get_global_id(0);"
                            "  if (i < count) to[i] = more(value) + TERM;"
                            "}";
static const char *maker_c = "uint more(uint x) { return 2 * x + 1; }"
                             "kernel void own(global uint *to, uint value, uint count) {"
                             "  size_t i = get_global_id(0);"
                             "  if (i < count) to[i] = more(value) * 10;"
                             "}";

#define HEAD ".version 7.0\n.target sm_70\n.address_size 64\n"
#define START                                                                                      \
  "  .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<4>;\n"                                           \
  "  ld.param.u64 %d0, [to]; ld.param.u32 %r0, [value]; ld.param.u32 %r1, [count];\n"              \
  "  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;\n"                          \
  "  mad.lo.u32 %r5, %r2, %r3, %r4;\n"                                                             \
  "  setp.ge.u32 %p, %r5, %r1; @%p ret;\n"                                                         \
  "  {\n    .param .b32 given; .param .b32 answer;\n"                                              \
  "    st.param.b32 [given], %r0; call (answer), more, (given); ld.param.b32 %r6, [answer];\n  }\n"
#define END                                                                                        \
  "  cvta.to.global.u64 %d1, %d0; mul.wide.u32 %d2, %r5, 4; add.s64 %d3, %d1, %d2;\n"              \
  "  st.global.u32 [%d3], %r6;\n  ret;\n}\n"
static const char *user_ptx =
    HEAD ".extern .func (.param .b32 result) more (.param .b32 x);\n"
         ".visible .entry use (.param .u64 to, .param .u32 value, .param .u32 count) {\n" START
         "  add.u32 %r6, %r6, 7;\n" END;
static const char *maker_ptx =
    HEAD ".visible .func (.param .b32 result) more (.param .b32 x) {\n"
         "  .reg .b32 %r<3>;\n"
         "  ld.param.b32 %r0, [x]; shl.b32 %r1, %r0, 1; add.u32 %r2, %r1, 1;\n"
         "  st.param.b32 [result], %r2;\n  ret;\n}\n"
         ".visible .entry own (.param .u64 to, .param .u32 value, .param .u32 count) {\n" START
         "  mul.lo.u32 %r6, %r6, 10;\n" END;

static ur_program_handle_t program_of(struct runtime *ur, const char *text) {
  return create_program(ur, (const unsigned char *)text, strlen(text), NULL);
}

static void build_open(struct runtime *ur, ur_program_handle_t program, const char *options) {
  UR(urProgramBuildExp(program, 1, &ur->device, UR_EXP_PROGRAM_FLAG_ALLOW_UNRESOLVED_SYMBOLS,
                       options));
}

static void expect(struct runtime *ur, ur_program_handle_t program, const char *name,
                   uint32_t value, uint32_t wanted) {
  ur_kernel_handle_t kernel = create_kernel(program, name);
  void *memory = allocate(ur, COUNT * 4);
  UR(launch(ur, kernel, memory, value, COUNT, NULL, 0, NULL, NULL));
  EXPECT(holds(ur, memory, COUNT, wanted));
  UR(urUSMFree(ur->context, memory));
  UR(urKernelRelease(kernel));
}

static void link_text(struct runtime *ur, bool is_ptx) {
  ur_program_handle_t user = program_of(ur, is_ptx ? user_ptx : user_c);
  ur_program_handle_t maker = program_of(ur, is_ptx ? maker_ptx : maker_c);
  ur_program_handle_t both[] = {user, maker, user};
  ur_kernel_handle_t kernel = NULL;
  build_open(ur, user, is_ptx ? NULL : "-DTERM=7");
  UR(urProgramBuild(ur->context, maker, NULL));
  ANSWERS(UR_RESULT_ERROR_INVALID_PROGRAM_EXECUTABLE, urKernelCreate(user, "use", &kernel));
  /* If the other program is not linked, a function is missing. The failure must change nothing. */
  ANSWERS(UR_RESULT_ERROR_PROGRAM_LINK_FAILURE, urProgramDynamicLinkExp(ur->context, 1, &user));
  ANSWERS(UR_RESULT_ERROR_INVALID_PROGRAM_EXECUTABLE, urKernelCreate(user, "use", &kernel));
  expect(ur, maker, "own", 3, 70);
  /* An existing kernel still works after the link. */
  ur_kernel_handle_t own = create_kernel(maker, "own");
  UR(urProgramDynamicLinkExp(ur->context, 3, both));
  expect(ur, user, "use", 3, 14);
  expect(ur, maker, "own", 3, 70);
  void *memory = allocate(ur, COUNT * 4);
  UR(launch(ur, own, memory, 4, COUNT, NULL, 0, NULL, NULL));
  EXPECT(holds(ur, memory, COUNT, 90));
  UR(urUSMFree(ur->context, memory));
  UR(urKernelRelease(own));
  /* Linking the programs again changes nothing. One program is then released. */
  UR(urProgramDynamicLinkExp(ur->context, 2, both));
  UR(urProgramRelease(maker));
  expect(ur, user, "use", 5, 18);

  /* Link the programs in two steps. */
  ur_program_handle_t open = NULL, other = program_of(ur, is_ptx ? maker_ptx : maker_c);
  ur_program_handle_t again = program_of(ur, is_ptx ? user_ptx : user_c);
  build_open(ur, again, is_ptx ? NULL : "-DTERM=7");
  UR(urProgramLinkExp(ur->context, 1, &ur->device, UR_EXP_PROGRAM_FLAG_ALLOW_UNRESOLVED_SYMBOLS, 1,
                      &again, NULL, &open));
  ANSWERS(UR_RESULT_ERROR_INVALID_PROGRAM_EXECUTABLE, urKernelCreate(open, "use", &kernel));
  ur_program_handle_t pair[] = {open, other};
  UR(urProgramDynamicLinkExp(ur->context, 2, pair));
  expect(ur, open, "use", 6, 20);
  UR(urProgramRelease(open));
  UR(urProgramRelease(other));
  UR(urProgramRelease(again));
  UR(urProgramRelease(user));
}

/* Links modules with different names, for drivers that compile no text. Each module is complete by
   itself. */
static void link_modules(struct runtime *ur) {
  static const char *const names[][2] = {{"fill", "full"}, {"scale", "skale"}, {"number", "namber"},
                                         {"reverse", "raverse"}, {"factor", "faktor"}};
  size_t size = 0;
  const unsigned char *first = image(&size);
  unsigned char *second = (unsigned char *)malloc(size);
  memcpy(second, first, size);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    for (size_t at = 0, length = strlen(names[i][0]); at + length <= size; at++)
      if (memcmp(second + at, names[i][0], length) == 0)
        memcpy(second + at, names[i][1], length);
  ur_program_handle_t both[] = {create_program(ur, first, size, NULL),
                                create_program(ur, second, size, NULL)};
  ur_kernel_handle_t kernel = NULL;
  for (int i = 0; i < 2; i++)
    build_open(ur, both[i], NULL);
  ANSWERS(UR_RESULT_ERROR_INVALID_PROGRAM_EXECUTABLE, urKernelCreate(both[0], "fill", &kernel));
  UR(urProgramDynamicLinkExp(ur->context, 2, both));
  expect(ur, both[0], "fill", 3, 3);
  expect(ur, both[1], "full", 4, 4);
  for (int i = 0; i < 2; i++)
    UR(urProgramRelease(both[i]));
  free(second);
}

int main(void) {
  limit_life();
  struct runtime ur = start_runtime();
  ur_program_handle_t program = NULL;
  bool links = supports(&ur, UR_DEVICE_INFO_DYNAMIC_LINK_SUPPORT_EXP);
  if (links) {
    char languages[256] = "";
    UR(urDeviceGetInfo(ur.device, UR_DEVICE_INFO_IL_VERSION, sizeof languages, languages, NULL));
    bool is_cpu = device_type_of(&ur) == UR_DEVICE_TYPE_CPU, is_ptx = strlen(languages) == 0;
    ANSWERS(UR_RESULT_ERROR_INVALID_NULL_POINTER, urProgramDynamicLinkExp(ur.context, 1, NULL));
    ANSWERS(UR_RESULT_ERROR_INVALID_SIZE, urProgramDynamicLinkExp(ur.context, 0, &program));
    ANSWERS(UR_RESULT_ERROR_INVALID_NULL_HANDLE, urProgramDynamicLinkExp(NULL, 1, &program));
    if (is_cpu || is_ptx)
      link_text(&ur, is_ptx);
    if (!is_ptx)
      link_modules(&ur);
  }
  stop_runtime(&ur);
  puts(links ? "programs were linked" : "nothing is linked dynamically");
  return 0;
}
