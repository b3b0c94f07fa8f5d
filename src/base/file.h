/* file.h - functions that read byte ranges of a file (file_read.c), write a file (file.c) or a directory of files
 * (file_directory.c) atomically, and take paths apart.
 *
 * Reading: positioned and exact; a short read is a truncation error.
 * Writing: to a temporary beside the target, synced, renamed, the directory
 * synced.  An existing target is refused unless `force`.  Whatever fails, the
 * target is untouched and the temporary is gone. */
#ifndef EXF_BASE_FILE_H
#define EXF_BASE_FILE_H
#include "base/err.h"
#include "base/text.h"

#include <stddef.h>
#include <stdint.h>

/* ---- reading -------------------------------------------------------- */
typedef struct exf_file exf_file; /* a regular file opened for reading; thread-safe reads */

/* The system calls that read a file; all return the same bytes.
 *   PREAD   through the page cache
 *   DIRECT  past the page cache (O_DIRECT): whole aligned blocks, of which the first and
 *           the last may hold more than was asked for */
typedef enum { EXF_IO_PREAD, EXF_IO_DIRECT } exf_io;
enum { EXF_FILE_ALIGN = 4096 }; /* of offsets, lengths and memory when reading directly */

/* Opens a regular file for PREAD.  EXF_IO where the system refuses or it is no regular file,
 * EXF_FORMAT where a git-lfs pointer stands in its place. */
exf_code exf_file_open(exf_file **out, const char *path, exf_err *err) EXF_CHECKED;
/* Opens the file of that name in an open directory; a symbolic link is refused.  path names it in messages. */
exf_code exf_file_open_in(exf_file **out, int directory, const char *name, const char *path, exf_err *err) EXF_CHECKED;
/* Opens standard input as a file.  What a pipe brings is read to its end at the first call, into a temporary in TMPDIR (else
 * /tmp) that has no name and goes with the process; every call opens the same bytes.  EXF_USAGE if it is a terminal. */
exf_code exf_file_open_input(exf_file **out, exf_err *err) EXF_CHECKED;
/* Chooses how the file is read; at most once, and not while reads are under way.  EXF_IO
 * naming the file and the other choice where its file system does not support this one. */
exf_code exf_file_use(exf_file *f, exf_io io, exf_err *err) EXF_CHECKED;
void exf_file_close(exf_file *f); /* NULL is allowed */
uint64_t exf_file_size(const exf_file *f);
const char *exf_file_path(const exf_file *f);
/* Returns "inode N, N bytes, modified S.NANOSECONDS, changed S.NANOSECONDS" of the file as it was opened. */
const char *exf_file_state(const exf_file *f);
/* EXF_MODEL naming both states if the file at that path is another one now or was changed since it was
 * opened; EXF_IO if it is gone. */
exf_code exf_file_unchanged(const exf_file *f, exf_err *err) EXF_CHECKED;
/* Exactly n bytes from offset; EXF_FORMAT naming file and offset if it ends before. */
exf_code exf_file_read(const exf_file *f, uint64_t offset, void *buf, size_t n, exf_err *err) EXF_CHECKED;
/* Bytes of the buffer that exf_file_read_aligned() needs to read n bytes. */
static inline size_t exf_file_aligned_size(size_t n)
{
    return n + 2 * (size_t)EXF_FILE_ALIGN;
}
/* Reads the same n bytes to some place in the buffer and points *at there.  DIRECT copies
 * nothing if the buffer is aligned to EXF_FILE_ALIGN. */
exf_code exf_file_read_aligned(const exf_file *f, uint64_t offset, void *buffer, size_t n, const void **at,
                               exf_err *err) EXF_CHECKED;

/* Reads the first n bytes of a file, to tell its format; 0 if it is shorter or cannot be read, which whoever opens it next says. */
int exf_file_begins(const char *path, void *bytes, size_t n);
/* Read the whole file and append a NUL; EXF_FORMAT if it is larger than limit
 * bytes.  Caller frees *out with exf_mem_free. */
exf_code exf_file_read_all(const exf_file *f, uint64_t limit, char **out, size_t *len, exf_err *err) EXF_CHECKED;
exf_code exf_file_slurp(const char *path, uint64_t limit, char **out, size_t *len, exf_err *err) EXF_CHECKED;

/* ---- writing -------------------------------------------------------- */
typedef struct exf_output_file exf_output_file;

/* Writes all bytes to a descriptor, at its position (offset -1) or at an offset.  Returns 0, or -1 with errno. */
int exf_write_all(int fd, const void *bytes, size_t n, int64_t offset);

/* Starts an output.  The parent directory must exist. */
exf_code exf_output_file_begin(exf_output_file **out, const char *target, int force, exf_err *err) EXF_CHECKED;
/* The same in a temporary of that path, beside the target, which stays there whatever fails, for a run that goes on:
 * goes on with what it holds (EXF_IO if it is not there), or makes it (EXF_IO if something of that name is there). */
exf_code exf_output_file_begin_at(exf_output_file **out, const char *target, int force, const char *temporary, int goes_on,
                                  exf_err *err) EXF_CHECKED;
/* Makes an output of an open file that has its final name, and takes fd over, also on failure; path names it in messages.  Commit
 * syncs it; neither commit nor abort renames or removes it. */
exf_code exf_output_file_adopt(exf_output_file **out, int fd, const char *path, exf_err *err) EXF_CHECKED;
/* The temporary's path, for libraries that open files themselves. */
const char *exf_output_file_path(const exf_output_file *f);
exf_code exf_output_file_write(exf_output_file *f, const void *bytes, size_t n, exf_err *err) EXF_CHECKED;
/* Writes n bytes at an absolute offset, leaving the append position where it is;
 * beyond the end the file grows, the gap reading as zeros.  Thread-safe. */
exf_code exf_output_file_patch(exf_output_file *f, uint64_t offset, const void *bytes, size_t n, exf_err *err) EXF_CHECKED;
/* Reads n bytes at an offset back; EXF_FORMAT if the file ends before. */
exf_code exf_output_file_read(const exf_output_file *f, uint64_t offset, void *buf, size_t n, exf_err *err) EXF_CHECKED;
exf_code exf_output_file_size(const exf_output_file *f, uint64_t *bytes, exf_err *err) EXF_CHECKED;
/* Takes room on the disk for bytes that are written later; where the file system cannot say, they are taken then. */
exf_code exf_output_file_allocate(exf_output_file *f, uint64_t offset, uint64_t bytes, exf_err *err) EXF_CHECKED;
/* EXF_IO if the temporary's name leads to another file by now: before a library opens it by that name. */
exf_code exf_output_file_check_name(const exf_output_file *f, exf_err *err) EXF_CHECKED;
/* Cuts or lengthens the file to so many bytes. */
exf_code exf_output_file_resize(exf_output_file *f, uint64_t bytes, exf_err *err) EXF_CHECKED;
/* Returns once what was written so far is on the disk.  Thread-safe. */
exf_code exf_output_file_sync(const exf_output_file *f, exf_err *err) EXF_CHECKED;
/* Sync, rename, sync the directory; frees f, also on failure. */
exf_code exf_output_file_commit(exf_output_file *f, exf_err *err) EXF_CHECKED;
/* Removes the temporary, unless it stays, and frees f; NULL is allowed. */
void exf_output_file_abort(exf_output_file *f);
/* All of that for a file of these bytes. */
exf_code exf_output_file_whole(const char *target, int force, const void *bytes, size_t n, exf_err *err) EXF_CHECKED;

/* EXF_IO if target exists and force is 0, or if it is no regular file, links not followed: so that a program refuses
 * before hours of work and not after. */
exf_code exf_output_check(const char *target, int force, exf_err *err) EXF_CHECKED;
/* Syncs a directory after a rename in it, where the system can. */
void exf_sync_directory(const char *dir);
/* mkdir -p; *n_made says how many directories this call made: the last ones of the path.  After a failure they are gone. */
exf_code exf_make_new_dirs(const char *path, size_t *n_made, exf_err *err) EXF_CHECKED;

/* ---- paths ---------------------------------------------------------- */

/* path itself when it is absolute, else the working directory with it.  Caller frees. */
exf_code exf_path_absolute(char **out, const char *path, exf_err *err) EXF_CHECKED;
/* The absolute path without links that a path has or, where nothing is there yet, would have.  Caller frees. */
exf_code exf_path_real(char **out, const char *path, exf_err *err) EXF_CHECKED;
/* Appends the directory that is `up` levels above that of this program's file, and rest; nothing where the system does not say
 * where that is. */
exf_code exf_path_beside_program(exf_text *out, int up, const char *rest, exf_err *err) EXF_CHECKED;
/* Writes "python3 PATH/NAME", the command of a script that comes with this program: where the package puts it, else where the tree
 * has it, seen from the working directory where it lies below that.  Returns buf. */
enum { EXF_SCRIPT_COMMAND = 512 };
const char *exf_script_command(char buf[EXF_SCRIPT_COMMAND], const char *name);
typedef enum { EXF_PATH_NOTHING, EXF_PATH_FILE, EXF_PATH_DIRECTORY, EXF_PATH_OTHER } exf_path_kind;
/* Looks what has that name, links not followed (OTHER). */
exf_code exf_path_look_at(const char *path, exf_path_kind *kind, exf_err *err) EXF_CHECKED;
/* The same with links followed; NOTHING where a link leads nowhere. */
exf_code exf_path_look_at_target(const char *path, exf_path_kind *kind, exf_err *err) EXF_CHECKED;
/* *found = 1 if a file, directory or link of that name exists, 0 if none does; an error where the system cannot say
 * (a disk that fails, a directory that may not be searched): that is not absence. */
exf_code exf_path_look(const char *path, int *found, exf_err *err) EXF_CHECKED;
/* *is = 1 if there is a directory of that name, links followed, 0 if there is none. */
exf_code exf_path_is_directory(const char *path, int *is, exf_err *err) EXF_CHECKED;

/* ---- a directory of files ------------------------------------------- */

/* exf_output_directory writes a directory of files: all or none.
 *
 * The files go to a temporary directory beside the target; commit syncs it and renames it to the target.  Whatever
 * fails, the target is as it was and the temporary is gone.
 *
 * A folder also gets EXF_FOLDER_LIST, its files' SHA-256 as `sha256sum -c` reads them, after a line that says what it is.
 * An existing target is refused unless `force`; with it, it must be a folder that holds such a list and only files of that
 * list with those bytes: a file that this program did not write, or that was changed since, is not deleted.  Old and new
 * directory exchange their names and the old one is removed.  Where the system cannot exchange names, the old one is moved
 * aside first, and the target is absent for a moment. */
#define EXF_FOLDER_LIST "exfold-files.sha256"

typedef struct exf_output_directory exf_output_directory;

/* The parent directory must exist. */
exf_code exf_output_directory_begin(exf_output_directory **out, const char *target, int force, exf_err *err) EXF_CHECKED;
/* Starts the next file, after syncing the one before.  `name` has no slash and is new. */
exf_code exf_output_directory_file(exf_output_directory *f, const char *name, exf_err *err) EXF_CHECKED;
/* Appends to the file that was started last; EXF_INTERNAL if none was. */
exf_code exf_output_directory_write(exf_output_directory *f, const void *bytes, size_t n, exf_err *err) EXF_CHECKED;
exf_code exf_output_directory_commit(exf_output_directory *f, exf_err *err) EXF_CHECKED; /* frees f, also on failure */
void exf_output_directory_abort(exf_output_directory *f);                                /* NULL is allowed */

/* EXF_IO if the target exists and force is 0, or is no directory, or holds what force may not replace; called before any
 * work. */
exf_code exf_output_directory_check(const char *target, int force, exf_err *err) EXF_CHECKED;

/* Calls visit with the name of each file in a directory, in sorted order, until it returns another code than EXF_OK. */
exf_code exf_each_file(const char *path, exf_code (*visit)(void *self, const char *name, exf_err *err), void *self,
                         exf_err *err) EXF_CHECKED;

/* ---- descriptors ---------------------------------------------------- */

/* Opens /dev/null on each of the descriptors 0, 1 and 2 that is closed, so that no file of the program gets its number
 * and with it the messages.  Reading from 0 and writing to 1 and 2 fail on it as on a closed descriptor: a result that
 * nobody gets is an error still.  The first call of every program; EXF_IO where there is no /dev/null. */
exf_code exf_standard_descriptors(exf_err *err) EXF_CHECKED;

/* ---- temporaries ------------------------------------------------------------------------------------ */

/* Returns bits that no other process and no earlier call has: the system's random bytes, or where it gives none, of the clock, the
 * process and a counter. */
uint64_t exf_random_u64(void);

/* exf_temporary makes the temporaries that outputs are written to, and removes those that killed processes left.
 *
 * The temporary of DIR/NAME is DIR/.NAME.<random>.partial, a file or a folder.  A name proves nothing: a file of somebody
 * else may be called so.  Before a temporary is made it is therefore claimed, by a symbolic link beside it that leads
 * nowhere and whose text says what is claimed; such a link appears with its text, in one step, or not at all:
 *
 *   .exfold-<random>       -> exfold-temporary/1:<inode of DIR>:.NAME.<random>.partial
 *   .exfold-<random>-<n>   -> exfold-temporary/1:<inode of DIR>:.NAME.<random>.partial/FILE      the n-th file of a folder
 *
 * The random number makes the claimed name new, and O_EXCL sees to it that this process made what has it; the inode tells a
 * copy of the directory from the one where the claim was made.  The writer holds a lock (flock) on the temporary until that
 * has its final name or is gone.  So what is claimed and not locked was left by a killed process, and the next writer in DIR
 * removes it, file by file; a folder that holds anything else stays.  What is not claimed is never touched.  Where a file
 * system has no symbolic links or no locks, temporaries of killed processes stay. */

typedef struct {
    char *path; /* NULL: none was made */
    int dir;    /* the directory that it is in, open; -1: it cannot be read, so that nothing is claimed */
    unsigned long long inode, random; /* inode: of that directory */
    size_t n_files; /* claimed in a folder */
} exf_temporary;

/* Makes an empty file, opened for reading and writing, or a folder, opened to be listed, that nobody else has; removes
 * what killed processes left in its directory. */
exf_code exf_temporary_make(exf_temporary *t, const char *target, int is_folder, int *fd, exf_err *err) EXF_CHECKED;
/* Claims a name in the folder, before the file is made.  No failure: what is not claimed is not removed. */
void exf_temporary_claim(exf_temporary *t, const char *name);
/* Returns 1 if the path still names what fd has open, links not followed; otherwise errno is why that is not known, or 0: the
 * name is another's. */
int exf_temporary_is(const char *path, int fd);
/* The same for a temporary that is about to become target: EXF_IO if its name is another's.  kind: "file" or "folder". */
exf_code exf_temporary_check(const char *path, int fd, const char *target, const char *kind, exf_err *err) EXF_CHECKED;
/* Withdraws the claims, for a temporary that has its final name or is gone, and frees *t; *t may be zero. */
void exf_temporary_end(exf_temporary *t);
/* Frees *t and leaves the claims, for a temporary that could not be removed. */
void exf_temporary_leave(exf_temporary *t);
#endif
