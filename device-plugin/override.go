package deviceplugin

// GPUOverride is what the configuration says of one GPU or MIG instance.
type GPUOverride struct {
	// Seats is how many seats it offers; 0 leaves the number as it is.
	Seats int
	// Clique replaces the NVLink clique that was found; empty leaves it.
	Clique string
}

func (o GPUOverride) apply(g GPU) GPU {
	if o.Seats > 0 {
		g.Seats = o.Seats
	}
	if o.Clique != "" {
		g.Clique = o.Clique
	}
	return g
}
