package planner

// AtRest returns how many models are at rest after the last plan.
func (p *Planner) AtRest() int {
	n := 0
	for _, m := range p.world.byName {
		n += btoi(m.atRest())
	}
	return n
}

// Kept returns what is kept of a model. It is another thing once the model was made anew.
func (p *Planner) Kept(model string) any { return p.world.byName[model] }
