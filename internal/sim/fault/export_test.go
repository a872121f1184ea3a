package fault

import "slices"

// Names lists every fault.
func Names() []string { return slices.Clone(names) }
