// Package planner decides what the controller changes: from the state and from what
// is seen of the world it computes one plan to commit, and the actions that bring
// Nomad to where the state is.
//
// It is pure: plain data in, plain data out, no clock, no I/O, the same answer for
// the same question. What it guarantees: a plan made from the current view is not
// refused; nothing is concluded from what is not known; no rollout, no node drain
// and no GPU out of use takes away what serves before its replacement does; and once the world is as it
// should be, both Plan and Actions have nothing to say. A new leader computes what
// the old one would have.
//
// A replica that serves and fails its requests is replaced, one of a model at a time and of a
// fleet a few, and each sooner again only if the ones before it helped.
//
// What is WARM or on its way there rests, and counts for nobody's number. Nothing is
// evicted that no placement needs, and what is evicted lowers its model's number, so that
// it does not come back by itself; two models that want the same place have their turns,
// once in Config.ThrashWindow. The memory of a GPU is given to somebody else only once an
// Outcome says that it came back. An external pool that is out of reach takes nothing,
// loses nothing, and changes nothing elsewhere.
package planner
