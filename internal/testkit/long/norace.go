//go:build !race

package long

// Race reports whether the race detector is on, which costs a multiple of the time.
const Race = false
