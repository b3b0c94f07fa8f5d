/* standard_descriptors.h - fills the descriptors 0, 1 and 2 of a program that was started without some of them. */
#ifndef EXF_BASE_STANDARD_DESCRIPTORS_H
#define EXF_BASE_STANDARD_DESCRIPTORS_H
#include "base/err.h"

/* Opens /dev/null on each of the descriptors 0, 1 and 2 that is closed, so that no file of the program gets its number
 * and with it the messages.  Reading from 0 and writing to 1 and 2 fail on it as on a closed descriptor: a result that
 * nobody gets is an error still.  The first call of every program; EXF_IO where there is no /dev/null. */
exf_code exf_standard_descriptors(exf_err *err) EXF_CHECKED;
#endif
