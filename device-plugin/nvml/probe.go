package nvml

import "context"

// Report is what a probe found.
type Report struct {
	Look Look `json:"look"`
	// Load is by the UUID of the GPU or MIG instance.
	Load map[string]Load `json:"load"`
}

// Probe starts a worker by command, looks once and ends it. It is for people
// who want to know what a node's NVML says; a Source does not use it.
func Probe(ctx context.Context, command []string) (Report, error) {
	p, err := spawn(command, func(Event) {})
	if err != nil {
		return Report{}, err
	}
	defer p.kill()
	if err := p.ready(ctx); err != nil {
		return Report{}, err
	}
	look, _, err := p.ask(ctx, OpLook)
	if err != nil {
		return Report{}, err
	}
	load, _, err := p.ask(ctx, OpLoad)
	if err != nil {
		return Report{}, err
	}
	return Report{Look: *look.Look, Load: load.Load}, nil
}
