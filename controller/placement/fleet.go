package placement

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"

	"remuda/controller/state"
)

// Config of a fleet.
type Config struct {
	Rates Rates
	// WarmShare of a node's memory is for WARM replicas, 0 to 1.
	WarmShare float64
}

// Tenant is a replica, or a job that is not ours, that holds something of a node.
type Tenant struct {
	Name, Node, Model string
	// Holds is what it holds now.
	Holds state.Holding
	// After is what it will hold once what is under way is done; nil: as Holds.
	After *state.Holding
	// Woken is, by GPU, the memory that a WARM replica takes when it wakes where it slept; nil for any
	// other tenant.
	Woken map[string]int64
	// Ways are how it may be evicted, the cheapest first; without any it never is. A way
	// that would hold more of a GPU than the tenant does is not taken.
	Ways []Way
	// Priced: the function given to Begin returns its ways, when an eviction is searched.
	Priced bool
}

// Way is one way to evict a tenant.
type Way struct {
	// To is WARM or COLD.
	To state.Goal
	// Holds is what it holds after it.
	Holds state.Holding
	// Cost in seconds, 0 or more.
	Cost float64
}

// The ledgers: what is held now, once what is under way is done, and if all WARM replicas were awake.
const (
	now = iota
	later
	awake
	ledgers
)

// seatsOfGPU is how many seats of a GPU are used; any beyond are left alone.
const seatsOfGPU = 64

// Fleet is nodes and what is held of them, with the indexes that keep a decision cheap
// on many nodes. It is not safe for concurrent use. What it was given is not changed by
// it, and may not be changed by others.
type Fleet struct {
	conf    Config
	nodes   []*node // by name
	byID    map[string]*node
	tenants map[string]*tenant
	pools   map[string][]*partition // of each capacity pool, by GPU model
	// crowds are all crowds, by the name of their weights.
	crowds  map[string][]*crowd
	changed journal
	// sleepers is how many tenants have Woken.
	sleepers int
	search   search // is used again by each decision

	// before has the tenants that changed since Begin as they were then, nil for one that was
	// not there. price returns the ways of the tenants that are Priced; those that were asked
	// for in another epoch are out of date.
	before map[string]*tenant
	price  func(tenant string) []Way
	epoch  int
}

// node is a node, or one that only tenants name: it has no groups then.
type node struct {
	*state.Node
	rank     int32
	gpus     []gpu
	groups   []*group
	warmRoom int64
	host     [ledgers]int64 // held
	tenants  []*tenant      // by name
	crowds   []*crowd
}

// crowd is a set of tenants that share weights on the same GPUs of a node.
type crowd struct {
	state.Weights
	node *node
	gpus []int // of the node, sorted
	// size is the number of its tenants. The weights count as long as it is above 0.
	size [ledgers]int
}

// gpu is what is left of one GPU.
type gpu struct {
	*state.GPU
	free  [ledgers]int64
	times [ledgers][]uint8 // how many hold each seat: more than one where a place is reserved
	held  [ledgers]uint64  // the seats that somebody holds, as bits
	twice [ledgers]uint64  // those that more than one holds
}

func (g *gpu) freeSeats(l int) int { return len(g.times[l]) - bits.OnesCount64(g.held[l]) }

// group is the GPUs of a node that one device request of Nomad's can draw from: of one
// model, in one NVLink clique, in good order. GPUs that name no clique are a group of
// their own on each node.
type group struct {
	node *node
	part *partition
	rank int32 // in its partition, by the node's name
	gpus []int // of the node
}

// partition is the groups of one GPU model in one capacity pool.
type partition struct {
	model  string
	groups []*group
	fits   map[shape]*fitIndex
	costs  map[costShape]*costIndex
}

// tenant is a tenant with its holdings by GPU.
type tenant struct {
	Tenant
	// asked is what MayEvict is asked about.
	asked *Tenant
	// taken: it is woken or evicted already, and not to be woken.
	taken bool
	node  *node
	uses  [ledgers]use
	ways  [ledgers][]freeing // made when they are needed
	known [ledgers]bool
	epoch int // of the fleet when its ways were asked for
}

// use is a holding by GPU.
type use struct {
	shares []share
	host   int64
	crowd  *crowd // the tenants that share its weights; nil if it shares none
}

// share is what is held of one GPU.
type share struct {
	gpu    int
	seats  uint64
	memory int64 // without shared weights
}

// freeing is what a way gives back.
type freeing struct {
	way    int
	cost   nanos
	host   int64 // what it takes of the node's memory in addition; below 0 gives back
	shares []share
	// leaves: the tenant stops sharing weights. The last tenant of a crowd that leaves frees the weights.
	leaves bool
}

// NewFleet returns the fleet of these nodes, of which nothing is held.
func NewFleet(nodes []*state.Node, c Config) *Fleet {
	f := &Fleet{conf: c, byID: make(map[string]*node, len(nodes)), crowds: map[string][]*crowd{}, tenants: map[string]*tenant{}, pools: map[string][]*partition{}}
	f.search.fleet, f.search.most = f, groupSteps
	sorted := slices.Clone(nodes)
	slices.SortFunc(sorted, func(a, b *state.Node) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	for _, n := range sorted {
		own := &node{Node: n, rank: int32(len(f.nodes)), gpus: make([]gpu, len(n.GPUs)), warmRoom: int64(float64(n.HostMemory) * c.WarmShare)}
		for i := range n.GPUs {
			g := &n.GPUs[i]
			own.gpus[i].GPU = g
			for l := range ledgers {
				own.gpus[i].free[l] = g.Memory
				own.gpus[i].times[l] = make([]uint8, min(len(g.Seats), seatsOfGPU))
			}
			if n.Usable() == "" && g.Healthy && !g.Cordoned {
				f.group(own, i)
			}
		}
		f.nodes = append(f.nodes, own)
		f.byID[n.ID] = own
	}
	for _, parts := range f.pools {
		slices.SortFunc(parts, func(a, b *partition) int { return strings.Compare(a.model, b.model) })
	}
	return f
}

// group adds a GPU to its group.
func (f *Fleet) group(n *node, i int) {
	g := n.gpus[i].GPU
	for _, gr := range n.groups {
		if first := n.gpus[gr.gpus[0]].GPU; first.Model == g.Model && first.Clique == g.Clique {
			gr.gpus = append(gr.gpus, i)
			return
		}
	}
	parts := f.pools[n.CapacityPool]
	at := slices.IndexFunc(parts, func(p *partition) bool { return p.model == g.Model })
	if at < 0 {
		at = len(parts)
		parts = append(parts, &partition{model: g.Model, fits: map[shape]*fitIndex{}, costs: map[costShape]*costIndex{}})
		f.pools[n.CapacityPool] = parts
	}
	p := parts[at]
	gr := &group{node: n, part: p, rank: int32(len(p.groups)), gpus: []int{i}}
	n.groups = append(n.groups, gr)
	p.groups = append(p.groups, gr)
}

// partitions returns those of a pool that have GPUs of a model, all for none.
func (f *Fleet) partitions(pool, model string) []*partition {
	parts := f.pools[pool]
	if model == "" {
		return parts
	}
	at, ok := slices.BinarySearchFunc(parts, model, func(p *partition, m string) int { return strings.Compare(p.model, m) })
	if !ok {
		return nil
	}
	return parts[at : at+1]
}

// Put adds a tenant, or replaces the one of its name. One on a node that the fleet was
// not given is kept for Usage.
func (f *Fleet) Put(t Tenant) {
	own := &tenant{Tenant: t}
	own.asked = &own.Tenant
	f.put(own)
}

func (f *Fleet) put(t *tenant) {
	f.remember(t.Name)
	f.Drop(t.Name)
	n := f.byID[t.Node]
	if n == nil {
		n = &node{Node: &state.Node{ID: t.Node}}
		f.byID[t.Node] = n
	}
	t.node = n
	if t.uses[now].shares == nil {
		t.uses[now] = f.use(n, &t.Holds)
		t.uses[later] = t.uses[now]
		if t.After != nil {
			t.uses[later] = f.use(n, t.After)
		}
		t.uses[awake] = t.uses[now]
		if t.Woken != nil {
			t.uses[awake] = f.use(n, &state.Holding{Seats: t.Holds.Seats, Memory: t.Woken})
		}
	}
	f.tenants[t.Name] = t
	at, _ := slices.BinarySearchFunc(n.tenants, t.Name, byName)
	n.tenants = slices.Insert(n.tenants, at, t)
	f.count(t, 1)
}

// Drop takes a tenant away, if it is there.
func (f *Fleet) Drop(name string) {
	t := f.tenants[name]
	if t == nil {
		return
	}
	f.remember(name)
	delete(f.tenants, name)
	n := t.node
	at, _ := slices.BinarySearchFunc(n.tenants, name, byName)
	n.tenants = slices.Delete(n.tenants, at, at+1)
	f.count(t, -1)
}

func byName(t *tenant, name string) int { return strings.Compare(t.Name, name) }

// Begin starts changes that Rollback takes back. The ways of tenants that are Priced are
// asked for anew, because their costs change with time.
func (f *Fleet) Begin(price func(tenant string) []Way) {
	f.before, f.price = map[string]*tenant{}, price
	f.epoch++
	for _, parts := range f.pools {
		for _, p := range parts {
			clear(p.costs)
		}
	}
}

// Rollback makes the tenants what they were at Begin.
func (f *Fleet) Rollback() {
	before := f.before
	f.before, f.price = nil, nil
	for name, t := range before {
		switch {
		case f.tenants[name] == t:
		case t == nil:
			f.Drop(name)
		default:
			f.put(t)
		}
	}
}

// remember keeps a tenant for Rollback before its first change.
func (f *Fleet) remember(name string) {
	if f.before == nil {
		return
	}
	if _, changed := f.before[name]; !changed {
		f.before[name] = f.tenants[name]
	}
}

// waysOf returns how a tenant may be evicted.
func (f *Fleet) waysOf(t *tenant) []Way {
	if t.Priced && t.epoch != f.epoch {
		t.Ways, t.ways, t.known, t.epoch = nil, [ledgers][]freeing{}, [ledgers]bool{}, f.epoch
		if f.price != nil {
			t.Ways = f.price(t.Name)
		}
	}
	return t.Ways
}

// count adds what a tenant holds to the ledgers, or takes it away.
func (f *Fleet) count(t *tenant, sign int) {
	n := t.node
	if t.Woken != nil {
		f.sleepers += sign
	}
	for l := range ledgers {
		n.host[l] += int64(sign) * t.uses[l].host
		if c := t.uses[l].crowd; c != nil {
			before := c.size[l] > 0
			c.size[l] += sign
			if before != (c.size[l] > 0) {
				for _, i := range c.gpus {
					n.gpus[i].free[l] -= int64(sign) * c.Bytes
				}
			}
		}
		for _, s := range t.uses[l].shares {
			g := &n.gpus[s.gpu]
			g.free[l] -= int64(sign) * s.memory
			for rest := s.seats; rest != 0; rest &= rest - 1 {
				i := bits.TrailingZeros64(rest)
				g.times[l][i] += uint8(sign)
				g.held[l] &^= 1 << i
				g.twice[l] &^= 1 << i
				if g.times[l][i] > 0 {
					g.held[l] |= 1 << i
				}
				if g.times[l][i] > 1 {
					g.twice[l] |= 1 << i
				}
			}
		}
	}
	for _, g := range n.groups {
		f.changed.add(g)
	}
}

// use sorts a holding by GPU. GPUs and seats that the node does not have, or has no
// more, are left out.
func (f *Fleet) use(n *node, h *state.Holding) use {
	u := use{host: h.HostMemory, crowd: f.crowd(n, h.Weights)}
	if len(n.gpus) == 0 || len(h.Seats) == 0 && len(h.Memory) == 0 {
		return u
	}
	u.shares = make([]share, 0, max(len(h.Memory), (len(h.Seats)+1)/2))
	of := func(gpu int) *share {
		for i := range u.shares {
			if u.shares[i].gpu == gpu {
				return &u.shares[i]
			}
		}
		u.shares = append(u.shares, share{gpu: gpu})
		return &u.shares[len(u.shares)-1]
	}
	for _, s := range h.Seats {
		if gpu, seat := n.seat(s); seat >= 0 {
			of(gpu).seats |= 1 << seat
		}
	}
	for uuid, bytes := range h.Memory {
		for i := range n.gpus {
			if n.gpus[i].UUID == uuid {
				of(i).memory += bytes
				break
			}
		}
	}
	if u.crowd != nil {
		for _, i := range u.crowd.gpus {
			of(i).memory -= u.crowd.Bytes
		}
	}
	if len(u.shares) > 1 {
		slices.SortFunc(u.shares, func(a, b share) int { return a.gpu - b.gpu })
	}
	return u
}

// crowd returns the crowd of these weights on the node, and makes it if there is none; nil for no weights.
func (f *Fleet) crowd(n *node, w state.Weights) *crowd {
	if w.Of == "" || len(n.gpus) == 0 {
		return nil
	}
	for _, c := range n.crowds {
		if c.Weights == w {
			return c
		}
	}
	c := &crowd{Weights: w, node: n}
	for uuid := range strings.SplitSeq(w.GPUs, ",") {
		for i := range n.gpus {
			if n.gpus[i].UUID == uuid {
				c.gpus = append(c.gpus, i)
			}
		}
	}
	slices.Sort(c.gpus)
	n.crowds = append(n.crowds, c)
	all := append(f.crowds[w.Of], c)
	// By place, so that of equal ones the same is chosen, whichever the fleet has met first.
	slices.SortFunc(all, func(a, b *crowd) int {
		return cmp.Or(cmp.Compare(a.node.ID, b.node.ID), cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(a.Bytes, b.Bytes))
	})
	f.crowds[w.Of] = all
	return c
}

// seat finds a seat, -1 for none.
func (n *node) seat(id string) (gpu, seat int) {
	for i := range n.gpus {
		g := &n.gpus[i]
		// Its ID is the GPU's, '#' and its number.
		if len(id) <= len(g.UUID) || id[len(g.UUID)] != '#' || id[:len(g.UUID)] != g.UUID {
			continue
		}
		for s := range g.times[now] {
			if g.Seats[s] == id {
				return i, s
			}
		}
	}
	return 0, -1
}

// of returns what is held of one GPU.
func (u *use) of(gpu int) share {
	for _, s := range u.shares {
		if s.gpu == gpu {
			return s
		}
	}
	return share{gpu: gpu}
}

// freeings are what a tenant's ways give back, see waysOf.
func (f *Fleet) freeings(t *tenant, l int) []freeing {
	if t.known[l] {
		return t.ways[l]
	}
	t.known[l] = true
ways:
	for i, w := range t.Ways {
		after := f.use(t.node, &w.Holds)
		if after.crowd != nil && after.crowd != t.uses[l].crowd {
			continue
		}
		for _, s := range after.shares {
			had := t.uses[l].of(s.gpu)
			if s.memory > had.memory || s.seats&^had.seats != 0 {
				continue ways
			}
		}
		fr := freeing{way: i, cost: toNanos(w.Cost), host: after.host - t.uses[l].host, leaves: after.crowd != t.uses[l].crowd}
		for _, s := range t.uses[l].shares {
			kept := after.of(s.gpu)
			if s.seats != kept.seats || s.memory != kept.memory {
				fr.shares = append(fr.shares, share{gpu: s.gpu, seats: s.seats &^ kept.seats, memory: s.memory - kept.memory})
			}
		}
		t.ways[l] = append(t.ways[l], fr)
	}
	return t.ways[l]
}

// Usage returns what is held of a node now.
func (f *Fleet) Usage(node string) *state.NodeUsage {
	u := state.NewUsage(node)
	n := f.byID[node]
	if n == nil {
		return u
	}
	for _, t := range n.tenants { // by name: the last one has a seat that two hold
		u.Add(t.Name, &t.Holds)
	}
	return u
}

// Hold makes a choice that has no evictions left come true: name, or the replica that
// is woken, is the tenant of its place. It has no ways.
func (f *Fleet) Hold(name string, c Choice, model string) {
	p := c.Placement
	t := Tenant{Name: name, Node: p.Node, Model: model, Holds: c.holds()}
	if c.Wake != "" {
		t.Name = c.Wake
		after := t.Holds
		t.After = &after
		t.Holds.HostMemory = p.HostMemory
	}
	f.Put(t)
	f.tenants[t.Name].taken = c.Wake != ""
}

// holds is what the replica of a choice holds there once it serves.
func (c *Choice) holds() state.Holding {
	return state.Holding{Seats: c.Placement.Seats, Memory: c.Placement.Memory, Weights: c.Weights}
}

// Reserve keeps others away from the place of a choice, now and later, while what is in
// its way is evicted: that is on its way from then on, and evicted for nobody else. The
// place is held by name, or by the replica that is to be woken.
func (f *Fleet) Reserve(c Choice, name, model string) {
	for _, e := range c.Evict {
		t := f.tenants[e.Tenant]
		if t == nil {
			continue
		}
		going := t.Tenant
		going.Ways, going.Priced = nil, false
		for _, w := range f.waysOf(t) {
			if w.To == e.To {
				after := w.Holds
				going.After = &after
				break
			}
		}
		f.Put(going)
		f.tenants[e.Tenant].taken = true
	}
	if c.Wake != "" {
		// Until it wakes it keeps what it has of GPUs on which it slept.
		if t := f.tenants[c.Wake]; t != nil {
			memory := make(map[string]int64, len(c.Placement.Memory))
			for gpu, bytes := range t.Holds.Memory {
				memory[gpu] = bytes
			}
			for gpu, bytes := range c.Placement.Memory {
				memory[gpu] = max(memory[gpu], bytes)
			}
			f.Put(Tenant{Name: c.Wake, Node: c.Placement.Node, Model: model,
				Holds: state.Holding{Seats: c.Placement.Seats, Memory: memory, HostMemory: c.Placement.HostMemory, Weights: c.Weights},
				After: new(c.holds())})
			f.tenants[c.Wake].taken = true
			return
		}
	}
	f.Hold(name, c, model)
}
