package nvml

import "context"

// Probe starts a worker by command, takes one look and ends it. It is for
// people who want to know what a node's NVML says; a Source does not use it.
func Probe(ctx context.Context, command []string) (Look, error) {
	p, err := startProcess(ctx, command, func(Event) {})
	if p != nil {
		defer p.kill()
	}
	if err != nil {
		return Look{}, err
	}
	m, _, err := p.ask(ctx, OpLook)
	if err != nil {
		return Look{}, err
	}
	return *m.Look, nil
}
