package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	nomadapi "github.com/hashicorp/nomad/api"

	deviceplugin "remuda/device-plugin"
)

// minNomad is the first version whose scheduler places ${device.ids} rightly
// (hashicorp/nomad#27177).
var minNomad = []int{1, 11, 1}

// AskNomad asks the agent at the address of cfg what it knows of its node.
func AskNomad(cfg *nomadapi.Config) func(context.Context) (Node, error) {
	return func(ctx context.Context) (Node, error) {
		client, err := nomadapi.NewClient(cfg)
		if err != nil {
			return Node{}, err
		}
		// Agent().Self() takes no context, and an agent that hangs never answers.
		query := (&nomadapi.QueryOptions{}).WithContext(ctx)
		var self nomadapi.AgentSelf
		if _, err := client.Raw().Query("/v1/agent/self", &self, query); err != nil {
			return Node{}, fmt.Errorf("query Nomad at %s: %w", cfg.Address, err)
		}
		var node Node
		node.PluginDir, _ = self.Config["PluginDir"].(string)
		if v, ok := self.Config["Version"].(map[string]any); ok {
			node.Version, _ = v["Version"].(string)
		}
		plugins, _ := self.Config["Plugins"].([]any)
		for _, p := range plugins {
			if block, ok := p.(map[string]any); ok {
				if name, ok := block["Name"].(string); ok {
					node.Plugins = append(node.Plugins, name)
					if name == deviceplugin.Name {
						node.Config, _ = block["Config"].(map[string]any)
					}
				}
			}
		}
		id := self.Stats["client"]["node_id"]
		node.Client = id != ""
		if !node.Client {
			return node, nil
		}
		info, _, err := client.Nodes().Info(id, query)
		if err != nil {
			return node, fmt.Errorf("query Nomad for node %s: %w", id, err)
		}
		if info.NodeResources == nil {
			return node, nil
		}
		for _, group := range info.NodeResources.Devices {
			if group.Type != deviceplugin.Type {
				continue
			}
			sim := group.Attributes[deviceplugin.AttrSimulated]
			for _, d := range group.Instances {
				if _, err := deviceplugin.ParseSeat(d.ID); err != nil {
					node.Others = append(node.Others, group.ID()+" "+d.ID)
					continue
				}
				seat := Seat{ID: d.ID, Simulated: sim != nil && sim.BoolVal != nil && *sim.BoolVal}
				if !d.Healthy {
					seat.Reason = orUnknown(d.HealthDescription)
				}
				node.Seats = append(node.Seats, seat)
			}
		}
		return node, nil
	}
}

func (r *round) checkNomad() {
	if r.nodeErr != nil {
		r.add("Nomad", Warning, r.nodeErr.Error(), "run this on the node itself, and set NOMAD_ADDR, NOMAD_TOKEN and NOMAD_CACERT as for the nomad command")
		return
	}
	n := r.node
	switch {
	case !n.Client:
		r.add("Nomad", Problem, "the agent is a server and not a client: it runs no tasks and offers no devices", "set -nomad to the address of the agent on the node with the GPUs")
		return
	case older(n.Version):
		r.add("Nomad", Problem, fmt.Sprintf("version %s can place a task that is pinned by ${device.ids} without a device", n.Version),
			"use 1.11.1 or newer")
	default:
		r.add("Nomad", OK, "version "+orUnknown(n.Version), "")
	}
	if slices.Contains(n.Plugins, deviceplugin.Name) {
		r.add("plugin block", OK, fmt.Sprintf("plugin %q is configured", deviceplugin.Name), "")
	} else {
		status, found := Note, fmt.Sprintf("no plugin %q block: the plugin uses its defaults", deviceplugin.Name)
		for _, name := range n.Plugins {
			if strings.Contains(name, "remuda") {
				status, found = Problem, fmt.Sprintf("the plugin block is named %q: must be %q", name, deviceplugin.Name)
			}
		}
		r.add("plugin block", status, found, "")
	}
	r.checkSeats()
}

func (r *round) checkSeats() {
	const check = "seats"
	n := r.node
	if len(n.Others) > 0 {
		r.add(check, Warning, "another plugin offers GPUs as well: "+strings.Join(n.Others, ", "), "remove one of the two plugins")
	}
	if len(n.Seats) == 0 {
		r.add(check, Problem, "Nomad offers no seats",
			"if the checks above are OK, restart the agent, which reads plugin_dir only at its start, and search its log for remuda-device")
		return
	}
	healthy, sick, gpus := 0, map[string]string{}, map[string]bool{}
	for _, s := range n.Seats {
		seat, _ := deviceplugin.ParseSeat(s.ID)
		gpus[seat.GPU] = true
		if s.Reason == "" {
			healthy++
		} else {
			sick[seat.GPU] = s.Reason
		}
	}
	status := OK
	if healthy == 0 {
		status = Problem
	}
	r.add(check, status, fmt.Sprintf("Nomad offers %d seats of %d GPUs, %d of them healthy", len(n.Seats), len(gpus), healthy), "")
	// What is against the node is against all of its GPUs, and one line is enough for it.
	byReason := map[string][]string{}
	for _, gpu := range slices.Sorted(keys(sick)) {
		byReason[sick[gpu]] = append(byReason[sick[gpu]], gpu)
	}
	for _, gpu := range slices.Sorted(keys(sick)) {
		reason := sick[gpu]
		who := byReason[reason]
		if who == nil {
			continue
		}
		byReason[reason] = nil
		if r.nvmlErr != "" && strings.Contains(reason, r.nvmlErr) {
			r.add(check+" of "+strings.Join(who, ", "), Problem, "unhealthy, because NVML cannot be used: see above", "")
			continue
		}
		do := "correct the cause; the seats then become healthy without a restart"
		if strings.Contains(reason, "reset") || strings.Contains(reason, "uncorrectable") {
			do = r.clearBy(who)
		}
		r.add(check+" of "+strings.Join(who, ", "), Problem, "unhealthy: "+reason, do)
	}
	if !r.probed || simulated(n.Seats) {
		return
	}
	for gpu := range gpus {
		if !slices.Contains(r.uuids, gpu) && sick[gpu] == "" {
			r.add(check+" of "+gpu, Warning, "Nomad offers them but NVML does not list the GPU", "wait for the plugin's next fingerprint and run doctor again")
		}
	}
}

// clearBy says how GPUs that need a reset become healthy.
func (r *round) clearBy(gpus []string) string {
	dir, said := r.node.Config["health_dir"].(string)
	if !said {
		dir = deviceplugin.DefaultHealthDir
	}
	if dir == "" {
		return "drain the node, stop Nomad, reset the GPU (nvidia-smi -r) or reboot, and start Nomad"
	}
	var files []string
	for _, gpu := range gpus {
		files = append(files, filepath.Join(dir, gpu+".json"))
	}
	return "drain the node, stop Nomad, reset the GPU (nvidia-smi -r) or reboot, and start Nomad. If the seats stay unhealthy after a reset, the driver left no trace of it: rm " + strings.Join(files, " ")
}

func keys(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// older says whether a version is below minNomad; one that cannot be read is not.
func older(version string) bool {
	core, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), "-")
	parts := strings.Split(core, ".")
	for i, least := range minNomad {
		if i >= len(parts) {
			return false
		}
		n, err := strconv.Atoi(parts[i])
		if err != nil || n > least {
			return false
		}
		if n < least {
			return true
		}
	}
	return false
}
