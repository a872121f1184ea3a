// Package scalesim simulates replicas of one model on a trace of requests, to judge
// scaling policies: all of them see the same requests, on the same replicas.
//
// It is a discrete-event simulation with whole nanoseconds. A replica has slots and needs
// a cold start before it serves. Requests wait in one queue, first come, first served, as
// at remuda's gateway: a free slot takes the oldest. A request holds one slot for its
// service time, whatever else runs beside it; it is never given up. A policy says, at its
// interval, how many replicas it wants. More are started; for fewer, starting ones are
// called off first, and then the emptiest ready ones drain: they finish what they run and
// take nothing new.
//
// Every replica is charged from the moment it starts until it is gone: starting, ready and
// draining.
//
// Guarantees:
//   - The same Config, Trace and decisions give the same Result, bit for bit.
//   - Run changes neither the trace nor the configuration, so that one trace serves many
//     runs at once.
//   - Every request is started, or waits at the end; every started one is finished, or
//     runs at the end. None is lost and none counted twice.
//   - A policy is told nothing that a policy in production could not measure.
//
// At one instant, events come in this order: requests end, replicas become ready, the
// policy decides, requests arrive.
//
// What it leaves out: a batch that slows down as it fills, KV memory that refuses a
// request, replicas that die, GPUs that are not to be had (but see Config.Max), and a
// network. Service times and tokens come with the trace (see Speed).
//
// The package peers has policies to compare with; the package frontier has intervals of confidence, Pareto frontiers and a plot.
package scalesim
