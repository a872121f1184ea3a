package state

// FeatureLevel is what this version can apply. A version that adds a command, or a field
// without which a command means something else, has a higher one.
const FeatureLevel = 2

// levelKeys is the first level with keys of clients, usage, and the queue and pass_authorization of
// models.
const levelKeys = 2

// levelAddresses is the first level with the addresses of replicas.
const levelAddresses = 2

// Level returns the lowest feature level of a server that can apply c. It is 1 unless
// the command has a method Level.
func Level(c Command) int {
	if l, ok := c.(interface{ Level() int }); ok {
		return l.Level()
	}
	return 1
}
