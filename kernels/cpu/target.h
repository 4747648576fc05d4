/* TARGET("features") lets the code up to TARGET_END use instructions beyond the compiler's base set. */
#define PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TARGET(features) PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define TARGET_END PRAGMA(clang attribute pop)
#else
#define TARGET(features) PRAGMA(GCC target(features))
#define TARGET_END
#endif
