package rank

// PIDs are the workers' process IDs.
func (c *Crew) PIDs() (out []int) {
	for _, w := range c.workers {
		out = append(out, w.cmd.Process.Pid)
	}
	return out
}
