package nomad

import (
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"remuda/internal/replica"
)

// Usual labels of the shims' ports. A single engine has portShim, each of a pair its
// role's.
const (
	portShim   = "shim"
	portSuffix = "_shim"
)

// Shim is where a shim's own HTTP is.
type Shim struct {
	Role string
	// Address is host:port.
	Address string
}

// Shims returns where the shims of the job's allocation a are, the primary's first. A
// port is a shim's where its job file says so in the task's meta remuda_shim, or by its
// label: "primary_shim" and "shadow_shim", or "shim". There are none where the job has no
// such port.
func (j Job) Shims(a Allocation) []Shim {
	var out []Shim
	for _, role := range []string{replica.RolePrimary, replica.RoleShadow} {
		label := role + portSuffix
		if named := j.ShimPorts[role]; named != "" {
			label = named
		} else if a.Ports[label] == "" && role == replica.RolePrimary {
			label = portShim
		}
		if address := a.Ports[label]; address != "" {
			out = append(out, Shim{Role: role, Address: address})
		}
	}
	return out
}

// shimsOf reads MetaShims. What it does not understand it leaves out.
func shimsOf(meta string) map[string]string {
	var out map[string]string
	for pair := range strings.SplitSeq(meta, ",") {
		role, label, ok := strings.Cut(pair, "=")
		if !ok || role == "" || label == "" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[role] = label
	}
	return out
}

// shims returns the engines' MetaShim as MetaShims, and finds labels that no port has.
func (p *pinner) shims(engines map[string]engineTask) string {
	labels := map[string]bool{}
	for _, g := range p.job.TaskGroups {
		networks := slices.Clone(g.Networks)
		for _, t := range g.Tasks {
			if t.Resources != nil {
				networks = append(networks, t.Resources.Networks...)
			}
		}
		for _, n := range networks {
			if n == nil {
				continue
			}
			for _, port := range slices.Concat(n.DynamicPorts, n.ReservedPorts) {
				labels[port.Label] = true
			}
		}
	}
	var out []string
	for _, role := range []string{replica.RolePrimary, replica.RoleShadow} {
		e, ok := engines[role]
		if !ok {
			continue
		}
		label, set := e.task.Meta[MetaShim]
		switch {
		case !set:
		case !labels[label] || strings.ContainsAny(label, ",="):
			p.fault("task %q: meta %s is %q: must be the label of one of the job's ports", e.task.Name, MetaShim, label)
		default:
			out = append(out, role+"="+label)
		}
	}
	return strings.Join(out, ",")
}

// used returns the GPUs that the replica uses first, in the order of its seats.
func (p *pinner) used() []string {
	var out []string
	for _, id := range p.r.Placement.Seats {
		uuid, _, _ := splitSeat(id)
		if _, used := p.r.Placement.Memory[uuid]; used && !slices.Contains(out, uuid) {
			out = append(out, uuid)
		}
	}
	if n := p.r.Variant.GPUs; len(p.faults) == 0 && len(out) != n {
		p.fault("placement: memory on %d GPUs with a seat: must be on %d, as in the variant", len(out), n)
	}
	return out
}

// portsOf returns the addresses of an allocation's ports by their labels.
func portsOf(r *api.AllocatedResources) map[string]string {
	if r == nil {
		return nil
	}
	out := map[string]string{}
	add := func(label, host string, port int) {
		if label != "" && host != "" && port > 0 && out[label] == "" {
			out[label] = net.JoinHostPort(host, strconv.Itoa(port))
		}
	}
	for _, p := range r.Shared.Ports {
		add(p.Label, p.HostIP, p.Value)
	}
	networks := slices.Clone(r.Shared.Networks)
	for _, t := range r.Tasks {
		if t != nil {
			networks = append(networks, t.Networks...)
		}
	}
	for _, n := range networks {
		if n == nil {
			continue
		}
		for _, p := range slices.Concat(n.DynamicPorts, n.ReservedPorts) {
			add(p.Label, n.IP, p.Value)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
