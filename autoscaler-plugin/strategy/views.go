package strategy

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/go-hclog"

	"remuda/autoscaler-plugin/sources"
)

// maxViews is how many different places checks may look at.
const maxViews = 64

// views has one View for each place that checks look at: a check may name another
// controller, Consul or Prometheus than the plugin block.
type views struct {
	open func(sources.Config, hclog.Logger) (View, error)
	log  hclog.Logger

	mu     sync.Mutex
	all    map[string]*View
	closed bool
}

func newViews(open func(sources.Config, hclog.Logger) (View, error), log hclog.Logger) *views {
	return &views{open: open, log: log, all: map[string]*View{}}
}

// of returns the View of a place, which is opened where it is new.
func (v *views) of(c sources.Config) (*View, error) {
	key := c.Key()
	v.mu.Lock()
	defer v.mu.Unlock()
	if got := v.all[key]; got != nil {
		return got, nil
	}
	if v.closed {
		return nil, errors.New("the plugin is stopping or has a new configuration")
	}
	if len(v.all) >= maxViews {
		return nil, fmt.Errorf("the checks use more than %d different controllers, Consul agents and Prometheus servers: use fewer, or a plugin block of their own for some", maxViews)
	}
	opened, err := v.open(c, v.log)
	if err != nil {
		return nil, err
	}
	v.all[key] = &opened
	return &opened, nil
}

func (v *views) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	for _, one := range v.all {
		if one.Close != nil {
			one.Close()
		}
	}
}
