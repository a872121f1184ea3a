package checkup

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	nomadapi "github.com/hashicorp/nomad/api"

	"remuda/controller/nomad"
	deviceplugin "remuda/device-plugin"
)

// query is the options of one request with its time limit.
func (r *round) query() (*nomadapi.QueryOptions, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	return (&nomadapi.QueryOptions{}).WithContext(ctx), cancel
}

// checkNomad checks the agent, its version, and the rights of NOMAD_TOKEN. It reports whether nodes
// can be listed.
func (r *round) checkNomad(c *nomadapi.Client) bool {
	const setup = "set NOMAD_ADDR, NOMAD_TOKEN and NOMAD_CACERT as for the nomad command"
	if err := r.checkServer("Nomad", c.Address()); err != nil {
		r.problem("Nomad", fmt.Sprintf("no answer from %s: %v", c.Address(), err), setup)
		return false
	}
	q, cancel := r.query()
	defer cancel()
	var self nomadapi.AgentSelf
	if _, err := c.Raw().Query("/v1/agent/self", &self, q); err != nil {
		r.warn("Nomad", "the version is unknown: "+err.Error(), "give the token of NOMAD_TOKEN the right agent { policy = \"read\" }, or read `nomad version` on the servers: 1.11.1 or later")
	} else {
		about, _ := self.Config["Version"].(map[string]any)
		version, _ := about["Version"].(string)
		switch {
		case older(version, [3]int{1, 11, 1}):
			r.problem("Nomad", fmt.Sprintf("version %s can offer a task no device IDs (hashicorp/nomad issue 27177)", version), "upgrade Nomad to 1.11.1 or later")
		case older(version, [3]int{1, 11, 3}):
			r.note("Nomad", fmt.Sprintf("version %s does not place system jobs again on a node that was drained and is eligible again (issue 27495)", version), "upgrade Nomad to 1.11.3, or run \"nomad job eval remuda-node\" after a drain")
		default:
			r.ok("Nomad", "version "+version)
		}
	}
	_, _, err := c.Nodes().List(q)
	if err != nil {
		r.problem("Nomad rights", "list nodes: "+err.Error(), "give the token of NOMAD_TOKEN the rights in jobs/acl/controller.nomad.hcl")
		return false
	}
	job := nomadapi.NewBatchJob("remuda-doctor", "remuda-doctor", "", 50)
	job.Datacenters = []string{"*"}
	job.AddTaskGroup(nomadapi.NewTaskGroup("doctor", 0).AddTask(nomadapi.NewTask("doctor", "raw_exec").SetConfig("command", "true")))
	_, _, listed := c.Jobs().List(q)
	_, _, planned := c.Jobs().PlanOpts(job, &nomadapi.PlanOptions{}, (&nomadapi.WriteOptions{}).WithContext(q.Context()))
	switch {
	case listed != nil:
		r.problem("Nomad rights", "list jobs: "+listed.Error(), "give the token of NOMAD_TOKEN the rights in jobs/acl/controller.nomad.hcl")
	case planned != nil && strings.Contains(planned.Error(), "403"):
		r.problem("Nomad rights", fmt.Sprintf("plan a job: %v", planned), "give the token of NOMAD_TOKEN the right submit-job, as in jobs/acl/controller.nomad.hcl")
	default:
		r.ok("Nomad rights", "the token may list nodes and jobs, and submit jobs")
	}
	return true
}

// checkNodes checks that the device plugin is seen.
func (r *round) checkNodes(c *nomadapi.Client) {
	q, cancel := r.query()
	defer cancel()
	q.Params = map[string]string{"resources": "true"}
	nodes, _, err := c.Nodes().List(q)
	if err != nil {
		r.problem("GPU nodes", err.Error(), "")
		return
	}
	var foreign, sick, noRawExec []string
	seats := 0
	for _, n := range nodes {
		if n.Status != nomadapi.NodeStatusReady || n.NodeResources == nil {
			continue
		}
		for _, group := range n.NodeResources.Devices {
			if group.Type != deviceplugin.Type {
				continue
			}
			for _, d := range group.Instances {
				if _, err := deviceplugin.ParseSeat(d.ID); err != nil {
					foreign = append(foreign, n.Name)
					continue
				}
				seats++
				r.gpuNodes[n.ID] = n.Name
				if !d.Healthy {
					sick = append(sick, fmt.Sprintf("%s on %s (%s)", d.ID, n.Name, d.HealthDescription))
				}
			}
		}
		if d := n.Drivers["raw_exec"]; r.gpuNodes[n.ID] != "" && (d == nil || !d.Detected || !d.Healthy) {
			noRawExec = append(noRawExec, n.Name)
		}
	}
	slices.Sort(foreign)
	if foreign = slices.Compact(foreign); len(foreign) > 0 {
		r.problem("GPU nodes", "another device plugin publishes the GPUs of "+strings.Join(foreign, ", "), "remove nomad-device-nvidia there")
	}
	switch {
	case len(r.gpuNodes) == 0:
		r.problem("GPU nodes", fmt.Sprintf("none of %s has seats of the plugin remuda-device", count(len(nodes), "node")), "install the plugin (docs/install.md, 2. Device plugin), restart Nomad there, and run \"remuda device doctor\" on the node if they stay away")
		return
	case len(sick) > 0:
		r.warn("GPU nodes", fmt.Sprintf("%d of %s out of order: %s", len(sick), count(seats, "seat"), sick[0]), "run \"remuda device doctor\" on the node")
	default:
		r.ok("GPU nodes", fmt.Sprintf("%s on %s", count(seats, "seat"), count(len(r.gpuNodes), "node")))
	}
	if len(noRawExec) > 0 {
		r.problem("raw_exec", "the driver raw_exec is off on "+strings.Join(noRawExec, ", "), "enable it in the Nomad client's configuration (docs/install.md, 3. Nomad clients)")
	}
}

// checkServices checks that lockd and the GPU memory service run on every node with GPUs.
func (r *round) checkServices(c *nomadapi.Client) {
	if len(r.gpuNodes) == 0 {
		return
	}
	q, cancel := r.query()
	defer cancel()
	q.Params = map[string]string{"meta": "true"}
	const check = "lockd and gms"
	do := "nomad job run -var consul=" + r.cfg.Consul.Address + " jobs/node.nomad.hcl"
	jobs, _, err := c.Jobs().List(q)
	if err != nil {
		return // checkNomad has reported it.
	}
	i := slices.IndexFunc(jobs, func(j *nomadapi.JobListStub) bool { return j.Meta[nomad.MetaNodeJob] == "true" && !j.Stop })
	if i < 0 {
		r.note(check, "no Nomad job runs them; that is right if their units run on every GPU node", "unless the units remuda-lockd and remuda-gms run on the GPU nodes: "+do)
		return
	}
	allocs, _, err := c.Jobs().Allocations(jobs[i].ID, false, q)
	if err != nil {
		r.problem(check, err.Error(), "")
		return
	}
	missing := maps.Clone(r.gpuNodes)
	for _, a := range allocs {
		running := a.ClientStatus == nomadapi.AllocClientStatusRunning
		for _, t := range a.TaskStates {
			running = running && t.State == "running"
		}
		if running {
			delete(missing, a.NodeID)
		}
	}
	if len(missing) > 0 {
		r.problem(check, fmt.Sprintf("the job %s does not run whole on %s", jobs[i].ID, strings.Join(slices.Sorted(maps.Values(missing)), ", ")), fmt.Sprintf("nomad job eval %s; if that does not help, nomad job status %[1]s", jobs[i].ID))
		return
	}
	r.ok(check, fmt.Sprintf("the job %s runs on %s", jobs[i].ID, count(len(r.gpuNodes), "GPU node")))
}
