#!/bin/sh
# ranks.sh - a batch job of Slurm: one calibration or validation by MPI ranks, one for each GPU.
# usage: sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 scripts/slurm/ranks.sh PROGRAM ARGUMENT ...
#
# PROGRAM is exfold-calibrate or exfold-validate, on PATH.  SRUN_OPTIONS are further options of srun, such as --mpi=pmix
# where the site's default is another (srun --mpi=list).  On a node without GPUs leave --gpus-per-node out: ranks share
# the cores.  Before its time limit the job is told to stop and saves what is done; the same command, submitted again, goes on.
#SBATCH --job-name=exfold
#SBATCH --signal=TERM@300
set -eu
[ $# -ge 2 ] || { sed -n '3s/^# //p' "$0"; exit 2; }
# shellcheck disable=SC2086  # words
exec srun ${SRUN_OPTIONS:-} "$@"
