package nvml

import (
	"slices"

	deviceplugin "remuda/device-plugin"
)

// topology labels GPUs by the NVLink clique that they are in. A GPU keeps the
// first label that was found for it: links that fail and GPUs that are lost
// must not rename a device group, because running allocations would lose their
// seats.
type topology struct {
	labels map[string]string // by UUID; empty: not joined to anything
}

// Nodes of the graph that stand for no GPU.
const (
	nodeSwitch = "nvswitch"
	nodeFabric = "fabric "
)

// learn labels the GPUs that are new.
func (t *topology) learn(devices []Device) {
	if t.labels == nil {
		t.labels = map[string]string{}
	}
	joined := map[string]string{} // union-find: towards the smaller name
	var find func(string) string
	find = func(n string) string {
		up, ok := joined[n]
		if !ok || up == n {
			return n
		}
		return find(up)
	}
	union := func(a, b string) {
		a, b = find(a), find(b)
		joined[a], joined[b] = min(a, b), min(a, b)
	}
	for _, d := range devices {
		self := deviceplugin.SysfsBusID(d.PCIBusID)
		for _, link := range d.Links {
			switch {
			case link.Switch:
				union(self, nodeSwitch)
			case link.Remote != "":
				union(self, deviceplugin.SysfsBusID(link.Remote))
			}
		}
		if d.Fabric != "" {
			union(self, nodeFabric+d.Fabric)
		}
	}
	for _, d := range devices {
		if _, known := t.labels[d.UUID]; known {
			continue
		}
		self := deviceplugin.SysfsBusID(d.PCIBusID)
		label := ""
		if _, ok := joined[self]; ok {
			// The lowest bus ID of the clique: the same on every start, also
			// while one of the others is missing, because links name it.
			label = find(self)
		}
		t.labels[d.UUID] = label
	}
}

// cliques returns the labels of GPUs, by UUID. Where all GPUs of a model are in
// one clique, or none is in any, the label is empty (see deviceplugin.GPU).
func (t *topology) cliques(devices []Device) map[string]string {
	ofModel := map[string][]string{}
	for _, d := range devices {
		if label := t.labels[d.UUID]; !slices.Contains(ofModel[d.Name], label) {
			ofModel[d.Name] = append(ofModel[d.Name], label)
		}
	}
	out := map[string]string{}
	for _, d := range devices {
		if len(ofModel[d.Name]) > 1 {
			out[d.UUID] = t.labels[d.UUID]
		}
	}
	return out
}
