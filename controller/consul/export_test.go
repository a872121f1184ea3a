package consul

// Wait returns when nothing is under way.
func (d *Deregistrar) Wait() { d.running.Wait() }
