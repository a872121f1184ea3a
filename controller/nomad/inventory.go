package nomad

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"remuda/controller/state"
)

// How the device plugin publishes GPUs (device-plugin/inventory.go): their groups'
// vendor and type, the groups' attributes, and the form of a device ID.
const (
	deviceVendor = "nvidia"
	deviceType   = "gpu"
	attrModel    = "model"
	attrMemory   = "memory"
	attrClique   = "nvlink_clique"
)

const (
	// fetchers is how many nodes are read at once. It is their only limit: under Config.Rate
	// a new leader would take minutes to read a large fleet.
	fetchers = 8
	// readAgain is how soon nodes that could not be read are read again.
	readAgain = time.Second
)

// WatchNodes calls update with the inventory, once at first and after each change,
// and lost when Nomad gets out of reach. Between update and the next lost what was
// said is up to date; after an outage update is called even with the same nodes.
// Nodes that once had seats stay in the inventory, with those that they have, until
// Nomad forgets them. Both are called from one goroutine. It returns when ctx ends,
// with ctx's error.
//
// Unread has the nodes that Nomad lists but that could not be read, by ID, with the reason.
// They are not among the nodes: what was known of them may be old, and whether they have
// gone down is unknown. They are read again every second.
func (c *Client) WatchNodes(ctx context.Context, known []string, update func(nodes []state.Node, unread map[string]error), lost func(error)) error {
	r := newReader(c, known)
	var (
		last   []state.Node
		unread map[string]error
		fresh  = true
	)
	return c.follow(ctx, "list nodes", func(q *api.QueryOptions, restarted bool) (*api.QueryMeta, error) {
		if restarted {
			clear(r.cache)
		}
		if len(unread) > 0 {
			q.WaitTime = min(q.WaitTime, readAgain)
		}
		nodes, failed, meta, err := r.list(ctx, q)
		if err != nil || !answered(meta) {
			return meta, err
		}
		for id, err := range failed {
			if unread[id] == nil {
				c.cfg.Logger.Warn("cannot read a node: its last known state stays in force", "node", id, "error", err)
			}
		}
		same := reflect.DeepEqual(nodes, last) && maps.EqualFunc(failed, unread, func(error, error) bool { return true })
		last, unread = nodes, failed
		if fresh || !same {
			fresh = false
			update(nodes, unread)
		}
		return meta, nil
	}, func(err error) {
		fresh = true
		lost(err)
	})
}

// reader reads nodes and remembers those that have not changed.
type reader struct {
	c     *Client
	known map[string]bool
	cache map[string]cached
}

type cached struct {
	index uint64
	node  state.Node
}

func newReader(c *Client, known []string) *reader {
	r := &reader{c: c, known: map[string]bool{}, cache: map[string]cached{}}
	for _, id := range known {
		r.known[id] = true
	}
	return r
}

// list reads the list of nodes, and those of them that have changed. Only the list
// waits for a change, and only its error is returned as such: of the nodes, those that
// could not be read are unread, with the error of each. The reads run under ctx, each with a
// timeout of its own.
func (r *reader) list(ctx context.Context, q *api.QueryOptions) (nodes []state.Node, unread map[string]error, meta *api.QueryMeta, err error) {
	stubs, meta, err := r.c.api.Nodes().List(q)
	if err != nil {
		return nil, nil, nil, err
	}
	var (
		mu     sync.Mutex // guards listed, cache and unread while nodes are read
		wg     sync.WaitGroup
		places = make(chan struct{}, fetchers)
		listed = map[string]bool{}
		stale  []string
	)
	unread = map[string]error{}
	for _, stub := range stubs {
		if pool := r.c.cfg.NodePool; pool != "" && stub.NodePool != pool {
			continue
		}
		listed[stub.ID] = true
		if old, ok := r.cache[stub.ID]; !ok || old.index != stub.ModifyIndex {
			stale = append(stale, stub.ID)
		}
	}
	for _, id := range stale {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			info, err := r.read(ctx, id)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, ErrNotFound):
				listed[id] = false // Nomad has forgotten it since it was listed
			case err != nil:
				unread[id] = err
				delete(r.cache, id)
			default:
				r.cache[id] = cached{index: info.ModifyIndex, node: r.node(info)}
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, nil, nil, err
	}
	nodes = []state.Node{}
	for id, c := range r.cache {
		if !listed[id] {
			delete(r.cache, id)
			continue
		}
		if len(c.node.GPUs) > 0 {
			r.known[id] = true
		}
		if r.known[id] {
			nodes = append(nodes, c.node)
		}
	}
	slices.SortFunc(nodes, func(a, b state.Node) int { return strings.Compare(a.ID, b.ID) })
	return nodes, unread, meta, nil
}

// read reads one node.
func (r *reader) read(ctx context.Context, id string) (*api.Node, error) {
	bounded, cancel := context.WithTimeout(ctx, r.c.cfg.Timeout)
	defer cancel()
	info, _, err := r.c.api.Nodes().Info(id, r.c.read(bounded))
	return info, classify(ctx, "read node "+id, err)
}

// node is Nomad's node as the controller sees it.
func (r *reader) node(n *api.Node) state.Node {
	out := state.Node{
		ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, Pool: n.NodePool,
		Draining: n.Drain || n.DrainStrategy != nil || emptied(n),
	}
	out.Ready = n.Status == api.NodeStatusReady && n.SchedulingEligibility == api.NodeSchedulingEligible && !out.Draining
	if n.Status == api.NodeStatusDown || n.Status == api.NodeStatusDisconnected {
		out.DownSince = time.Unix(n.StatusUpdatedAt, 0).UTC()
		if n.StatusUpdatedAt == 0 {
			out.DownSince = r.c.now().UTC()
		}
	}
	if n.NodeResources == nil {
		return out
	}
	out.HostMemory = n.NodeResources.Memory.MemoryMB << 20
	out.CPU = n.NodeResources.Cpu.CpuShares
	out.GPUs = gpus(n.NodeResources.Devices)
	return out
}

// emptied reports whether the node's drain is over and the node takes no work since. Nothing can start
// again there, and what the drain has ended must move as if it still went on.
func emptied(n *api.Node) bool {
	return n.SchedulingEligibility == api.NodeSchedulingIneligible && n.LastDrain != nil && n.LastDrain.Status == api.DrainStatusComplete
}

// gpus gathers the seats of each GPU. A GPU is healthy while all of its seats are.
func gpus(groups []*api.NodeDeviceResource) []state.GPU {
	type card struct {
		state.GPU
		numbers map[string]int
	}
	found := map[string]*card{}
	for _, g := range groups {
		if g == nil || g.Vendor != deviceVendor || g.Type != deviceType {
			continue
		}
		model := cmp.Or(attrText(g.Attributes, attrModel), g.Name)
		for _, d := range g.Instances {
			if d == nil {
				continue
			}
			uuid, number, ok := splitSeat(d.ID)
			if !ok {
				continue // NVIDIA's own plugin, whose GPUs have no seats
			}
			one := found[uuid]
			if one == nil {
				one = &card{numbers: map[string]int{}, GPU: state.GPU{
					UUID: uuid, Model: model, Clique: attrText(g.Attributes, attrClique), Memory: attrBytes(g.Attributes, attrMemory), Healthy: true,
				}}
				found[uuid] = one
			}
			one.Seats = append(one.Seats, d.ID)
			one.numbers[d.ID] = number
			if !d.Healthy && one.Healthy {
				one.Healthy, one.Reason = false, cmp.Or(d.HealthDescription, "unhealthy")
			}
		}
	}
	var out []state.GPU
	for _, one := range found {
		slices.SortFunc(one.Seats, func(a, b string) int { return cmp.Compare(one.numbers[a], one.numbers[b]) })
		out = append(out, one.GPU)
	}
	slices.SortFunc(out, func(a, b state.GPU) int { return strings.Compare(a.UUID, b.UUID) })
	return out
}

// splitSeat reads a device ID, "<GPU UUID>#<seat>".
func splitSeat(id string) (uuid string, number int, ok bool) {
	uuid, text, ok := strings.Cut(id, "#")
	number, err := strconv.Atoi(text)
	if !ok || uuid == "" || err != nil || number < 0 || strconv.Itoa(number) != text {
		return "", 0, false
	}
	return uuid, number, true
}

func attrText(attrs map[string]*api.Attribute, name string) string {
	if a := attrs[name]; a != nil && a.StringVal != nil {
		return *a.StringVal
	}
	return ""
}

// byteUnits are Nomad's units of sizes, in bytes (plugins/shared/structs/units.go).
var byteUnits = map[string]float64{
	"":    1 << 20, // Nomad's own unit of memory
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
}

// attrBytes reads a size in any of Nomad's units.
func attrBytes(attrs map[string]*api.Attribute, name string) int64 {
	a := attrs[name]
	if a == nil {
		return 0
	}
	factor, ok := byteUnits[a.Unit]
	switch {
	case !ok:
		return 0
	case a.IntVal != nil:
		return *a.IntVal * int64(factor)
	case a.FloatVal != nil:
		return int64(*a.FloatVal * factor)
	}
	return 0
}
