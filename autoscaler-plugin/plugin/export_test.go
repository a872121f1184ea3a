package plugin

// Guards are the names of all guards, in their order.
func Guards() (names []string) {
	for _, list := range [][]guard{before, limits, after} {
		for _, g := range list {
			names = append(names, g.name)
		}
	}
	return names
}

// PolicyHash is policyHash.
var PolicyHash = policyHash
