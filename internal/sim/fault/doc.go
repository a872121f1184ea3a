// Package fault holds the simulated engine's fault switches: what they are
// called, how they are set by flag and by JSON, and who hears of a change.
//
// It guarantees that a set is changed as a whole or not at all, that unknown
// names and values out of range are refused by name, and that a reader always
// sees a consistent set. What a fault does is up to the engine; each field of
// Set says what that is.
package fault
