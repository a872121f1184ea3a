package placement

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"remuda/internal/bytesize"
)

// Refusal says of each node why nothing fits there. Its level is CANT_ACCOMMODATE.
type Refusal struct {
	// What is what did not fit.
	What string

	nodes map[string]string
	ask   func() map[string]string // makes nodes; nil once it is made
}

// Nodes has the reasons, by the nodes' names. They are made when they are asked for the
// first time, of the fleet as it is then: ask before the fleet is changed.
func (r *Refusal) Nodes() map[string]string {
	if r.ask != nil {
		r.nodes, r.ask = r.ask(), nil
	}
	return r.nodes
}

// A sentence names so many nodes for one reason, and so many reasons.
const (
	named   = 3
	reasons = 6
)

// Error is a sentence with the reasons grouped, those of most nodes first.
func (r *Refusal) Error() string {
	if len(r.Nodes()) == 0 {
		return "no room for " + r.What + ": there are no nodes with GPUs"
	}
	byReason := map[string][]string{}
	for node, reason := range r.Nodes() {
		byReason[reason] = append(byReason[reason], node)
	}
	order := make([]string, 0, len(byReason))
	for reason, nodes := range byReason {
		slices.Sort(nodes)
		order = append(order, reason)
	}
	slices.SortFunc(order, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(byReason[b]), len(byReason[a])), strings.Compare(a, b))
	})
	var parts []string
	rest := 0
	for i, reason := range order {
		nodes := byReason[reason]
		if i >= reasons {
			rest += len(nodes)
			continue
		}
		who := strings.Join(nodes[:min(named, len(nodes))], ", ")
		if len(nodes) > named {
			who = fmt.Sprintf("%s and %d more", who, len(nodes)-named)
		}
		parts = append(parts, who+": "+reason)
	}
	if rest > 0 {
		parts = append(parts, plural(rest, "node")+" for other reasons")
	}
	return "no room for " + r.What + ": " + strings.Join(parts, "; ")
}

// String says what is asked for.
func (r *Request) String() string {
	s := fmt.Sprintf("a replica of %s:%s (%s", r.Model, r.Variant.Name, plural(r.Variant.GPUs, "GPU"))
	if r.Variant.GPUModel != "" {
		s += " " + r.Variant.GPUModel
	}
	return fmt.Sprintf("%s with %s and %s each)", s, plural(r.SeatsPerGPU(), "seat"), bytesize.Text(r.Variant.Memory))
}

// refusal says why nothing was found.
func (f *Fleet) refusal(r *Request) *Refusal {
	asked := *r
	return &Refusal{What: r.String(), ask: func() map[string]string { return f.reasons(&asked) }}
}

// reasons says of each node of the request's pool why there is no place.
func (f *Fleet) reasons(r *Request) map[string]string {
	out := map[string]string{}
	for _, n := range f.nodes {
		if n.CapacityPool != r.Pool {
			continue
		}
		name := n.Name
		if _, twice := out[name]; twice || name == "" {
			name = strings.TrimSpace(n.Name + " " + n.ID)
		}
		out[name] = f.reason(n, r)
	}
	return out
}

func (f *Fleet) reason(n *node, r *Request) string {
	switch no := r.invalid(); {
	case r.Exclude[n.ID]:
		return "excluded because a replica failed there"
	case n.Usable() != "":
		return n.Usable()
	case len(n.GPUs) == 0:
		return "no GPUs"
	case no != "":
		return no
	}
	a := f.ask(r)
	v := f.judge(n, &a)
	return v.String()
}

// verdict counts why GPUs of one node are no good.
type verdict struct {
	model, ill, seats, memory int
	wanted, illness           string
	freest                    int64
	evictable                 int // tenants that were allowed for
	fit, seated               int // GPUs of the best group that would do, and that have the seats
	asked                     shape
}

// judge looks at each GPU of a node as it would be with all gone that may be evicted.
func (f *Fleet) judge(n *node, a *asking) verdict {
	v := verdict{wanted: a.Variant.GPUModel, asked: a.shape}
	free, seats := make([]int64, len(n.gpus)), make([]int, len(n.gpus))
	for i := range n.gpus {
		free[i], seats[i] = n.gpus[i].free[a.ledger], n.gpus[i].freeSeats(a.ledger)
	}
	for _, t := range n.tenants {
		if len(f.waysOf(t)) == 0 || a.MayEvict == nil || !a.MayEvict(t.asked) {
			continue
		}
		v.evictable++
		for i := range n.gpus {
			most, seated := int64(0), 0
			for _, fr := range f.freeings(t, a.ledger) {
				for _, sh := range fr.shares {
					if sh.gpu == i {
						most, seated = max(most, sh.memory), max(seated, bits.OnesCount64(sh.seats&^n.gpus[i].twice[a.ledger]))
					}
				}
			}
			free[i] += most
			seats[i] += seated
		}
	}
	type counts struct{ fit, seated int }
	groups := map[[2]string]counts{}
	for i := range n.gpus {
		g := n.gpus[i].GPU
		switch {
		case v.wanted != "" && g.Model != v.wanted:
			v.model++
			continue
		case g.Cordoned:
			v.ill++
			v.illness = "cordoned"
			continue
		case !g.Healthy:
			v.ill++
			v.illness = cmp.Or(g.Reason, "unhealthy")
			continue
		case seats[i] < a.seats:
			v.seats++
			continue
		}
		key := [2]string{g.Model, g.Clique}
		c := groups[key]
		c.seated++
		if free[i] >= a.memory {
			c.fit++
		} else {
			v.memory++
			v.freest = max(v.freest, free[i])
		}
		groups[key] = c
		v.fit, v.seated = max(v.fit, c.fit), max(v.seated, c.seated)
	}
	return v
}

// String puts it in words.
func (v *verdict) String() string {
	var parts []string
	if v.model > 0 {
		parts = append(parts, fmt.Sprintf("%s of another model than %s", plural(v.model, "GPU"), v.wanted))
	}
	if v.ill > 0 {
		parts = append(parts, fmt.Sprintf("%s out of use (%s)", plural(v.ill, "GPU"), v.illness))
	}
	if v.seats > 0 {
		parts = append(parts, fmt.Sprintf("%s with too few free seats", plural(v.seats, "GPU")))
	}
	if v.memory > 0 {
		parts = append(parts, fmt.Sprintf("%s with too little free memory (at most %s)", plural(v.memory, "GPU"), bytesize.Text(v.freest)))
	}
	switch {
	case v.fit > 0 && v.fit < v.asked.gpus:
		parts = append(parts, fmt.Sprintf("only %s with room in one clique", plural(v.fit, "GPU")))
	case v.asked.reach > v.asked.gpus && v.seated > 0 && v.seated < v.asked.reach:
		parts = append(parts, fmt.Sprintf("only %s with a free seat in one clique, of the %d needed", plural(v.seated, "GPU"), v.asked.reach))
	case v.fit >= v.asked.gpus:
		parts = append(parts, "no room in the node's host memory for the replicas that would go WARM")
	}
	s := strings.Join(parts, ", ")
	if v.evictable > 0 {
		s += fmt.Sprintf(", even after evicting %s", plural(v.evictable, "replica"))
	}
	return s
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
