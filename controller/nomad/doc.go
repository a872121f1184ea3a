// Package nomad is the controller's only door to Nomad: it reads the inventory of
// GPU nodes, renders replicas' jobs from their variants' job files, registers and
// stops them, and observes what runs.
//
// It decides nothing. What it guarantees: a job is written only over the version
// that its caller knows (compare and swap), writing the same twice is writing it
// once, a job that is not a replica's is never touched, and every error says whether
// Nomad refused, knows nothing of it, has something else there, or was not to be
// reached. The watches outlive a Nomad that is down, slow or restored from a
// snapshot, and tell whether what they have said is up to date.
package nomad
