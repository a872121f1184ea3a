// Package torture searches lockd for two holders at once. It runs real lockd
// processes and real holders with children, kills and stops them at random, and
// lets witnesses that know nothing of lockd judge:
//
//   - A flock on a file, taken by every holder at its grant and inherited by its
//     children: the kernel lets go of it when the last of them is dead. A holder
//     that cannot take it at once has found an overlap.
//   - A shared memory page on which every holder and every child that can notes,
//     each few milliseconds, the time at which it lived and held. A note that is
//     later than a successor's grant is an overlap.
//   - The history of grants, marks and deaths, which must be linearizable as a
//     lock with growing tokens.
//
// The same search must find each of the mutants in testdata.
//
// What it does not search: holders over TCP, whose death no witness on another
// machine could see, and children that have cleared their environment, which
// lockd knows by parent links alone.
package torture
