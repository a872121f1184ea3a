package server

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-memdb"

	"remuda/controller/api"
	"remuda/controller/state"
)

const (
	// forgetAutoscaler is how long an autoscaler is listed after its last request.
	forgetAutoscaler = time.Hour
	// maxAutoscalers is how many are listed: far more than run, as each start has a name of its own.
	maxAutoscalers = 64
)

// autoscalers are those whose requests this server answered as the leader, by their names.
type autoscalers struct {
	mu  sync.Mutex
	all map[string]api.Autoscaler
}

// note counts a request, if an autoscaler made it.
func (a *autoscalers) note(rq *request, at time.Time, update func(*api.Autoscaler)) {
	version, name, ok := autoscalerOf(rq.UserAgent())
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.all, func(_ string, one api.Autoscaler) bool { return at.Sub(one.LastSeenAt) > forgetAutoscaler })
	one, known := a.all[name]
	if !known {
		if len(a.all) == maxAutoscalers {
			return
		}
		one = api.Autoscaler{Name: name, FirstSeenAt: at}
	}
	one.Version, one.LastSeenAt = version, at
	update(&one)
	if a.all == nil {
		a.all = map[string]api.Autoscaler{}
	}
	a.all[name] = one
}

// autoscalerOf reads the User-Agent of an autoscaler: "remuda-autoscaler/0.1.0 (host/1234)".
func autoscalerOf(agent string) (version, name string, ok bool) {
	const longest = 200
	rest, ours := strings.CutPrefix(agent, api.AutoscalerAgent+"/")
	version, name, named := strings.Cut(rest, " (")
	name, closed := strings.CutSuffix(name, ")")
	return version, name, ours && named && closed && name != "" && len(agent) <= longest
}

// list returns those that were seen in the last hour, by name.
func (a *autoscalers) list(at time.Time) []api.Autoscaler {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := []api.Autoscaler{}
	for _, one := range a.all {
		if at.Sub(one.LastSeenAt) <= forgetAutoscaler {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b api.Autoscaler) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// listAutoscalers answers from the requests that this server got, which leads, and cannot be watched.
func (s *Server) listAutoscalers(*request, *state.View, memdb.WatchSet) (answer, error) {
	return answer{value: s.autoscalers.list(s.cfg.Now())}, nil
}
