package devcluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"

	"remuda/internal/sim/gpu"
	"remuda/jobs"
)

// nodeJob is the ID of the job in jobs/node.nomad.hcl.
const nodeJob = "remuda-node"

// gpuDir is where the memory of the simulated GPUs is counted.
const gpuDir = "gpus"

// gpuMemory is how much memory each simulated GPU has: that of an H100.
const gpuMemory = "80GiB"

// nomadCanSign returns nil once the server leads and its keyring has a key.
func (c *Cluster) nomadCanSign() error {
	if _, err := c.nomad.Status().Leader(); err != nil {
		return err
	}
	keys, _, err := c.nomad.Keyring().List(nil)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if k.State == nomadapi.RootKeyStateActive {
			return nil
		}
	}
	return errors.New("the keyring has no active key yet")
}

// nomadSeats returns how many seats a node offers, once it is ready.
func (c *Cluster) nomadSeats(name string) (int, error) {
	nodes, _, err := c.nomad.Nodes().List(nil)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(nodes, func(n *nomadapi.NodeListStub) bool { return n.Name == name })
	if i < 0 || nodes[i].Status != nomadapi.NodeStatusReady {
		return 0, fmt.Errorf("node %s is not ready yet", name)
	}
	if d := nodes[i].Drivers["raw_exec"]; d == nil || !d.Healthy {
		return 0, fmt.Errorf("the raw_exec driver of node %s is not ready yet", name)
	}
	node, _, err := c.nomad.Nodes().Info(nodes[i].ID, nil)
	if err != nil {
		return 0, err
	}
	seats := 0
	for _, group := range node.NodeResources.Devices {
		if group.Vendor == "nvidia" && group.Type == "gpu" {
			seats += len(group.Instances)
		}
	}
	if seats < c.opts.GPUs {
		return 0, fmt.Errorf("the device plugin has published %d of at least %d seats", seats, c.opts.GPUs)
	}
	return seats, nil
}

// register runs a job file with this cluster's variables, on one node.
func (c *Cluster) register(ctx context.Context, name, source, node string, vars map[string]any) (string, error) {
	path := c.dir.join("jobs", name+".nomad.hcl")
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		return "", fmt.Errorf("write the job file: %w", err)
	}
	job, err := c.nomad.Jobs().ParseHCLOpts(&nomadapi.JobsParseRequest{JobHCL: source, Variables: hclVars(vars), Canonicalize: true})
	if err != nil {
		return "", fmt.Errorf("parse %s: %w", path, err)
	}
	job.ID, job.Name = &name, &name
	job.Constraints = append(job.Constraints, nomadapi.NewConstraint("${node.unique.name}", "=", node))
	if _, _, err := c.nomad.Jobs().Register(job, (&nomadapi.WriteOptions{}).WithContext(ctx)); err != nil {
		return "", fmt.Errorf("register job %q: %w", *job.ID, err)
	}
	return fmt.Sprintf("%s (%s)", *job.ID, path), nil
}

// gpus are the UUIDs of the GPUs that a node's device plugin simulates with the config that
// it is given.
func (c *Cluster) gpus(node int) []string {
	uuids := make([]string, c.opts.GPUs)
	for i := range uuids {
		uuids[i] = gpu.UUID(c.ports.seed(node), i)
	}
	return uuids
}

// runNodes runs lockd and the GPU memory service for the simulated GPUs of each node, and
// waits for their sockets.
func (c *Cluster) runNodes(ctx context.Context) (string, error) {
	var results []string
	for i := range c.opts.Nodes {
		name, dir := numbered(nodeJob, i), c.dir.nodeSockets(i)
		memory := []string{"-backend", "host", "-host-gpu-dir", c.dir.join(gpuDir)}
		sockets := []string{filepath.Join(dir, "lockd.sock")}
		for _, uuid := range c.gpus(i) {
			memory = append(memory, "-gpu", uuid+"="+gpuMemory)
			sockets = append(sockets, filepath.Join(dir, fmt.Sprintf("gms_%s_weights.sock", uuid)))
		}
		result, err := c.register(ctx, name, jobs.Node, nodeName(i), map[string]any{"remuda": c.opts.Remuda, "socket_dir": dir,
			"state_dir": c.dir.join("lockd", nodeName(i)), "consul": c.ports.addr("consul-http"), "memory": memory})
		if err != nil {
			return "", err
		}
		results = append(results, result)
		err = c.out.waitFor(ctx, time.Minute, func(ctx context.Context) error {
			for _, path := range sockets {
				conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
				if err != nil {
					return errors.Join(err, c.explainJob(name))
				}
				_ = conn.Close()
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return strings.Join(results, ", "), nil
}

// hclVars renders strings and lists of strings.
func hclVars(vars map[string]any) string {
	var b strings.Builder
	for name, value := range vars {
		switch value := value.(type) {
		case []string:
			quoted := make([]string, len(value))
			for i, s := range value {
				quoted[i] = hclString(s)
			}
			fmt.Fprintf(&b, "%s = [%s]\n", name, strings.Join(quoted, ", "))
		case string:
			fmt.Fprintf(&b, "%s = %s\n", name, hclString(value))
		default:
			panic(fmt.Sprintf("variable %s is a %T", name, value))
		}
	}
	return b.String()
}

// explainJob is never nil: it says why the job does not serve yet.
func (c *Cluster) explainJob(name string) error {
	allocs, _, err := c.nomad.Jobs().Allocations(name, false, nil)
	if err != nil {
		return err
	}
	if len(allocs) == 0 {
		evals, _, err := c.nomad.Jobs().Evaluations(name, nil)
		if err == nil {
			for _, e := range evals {
				if reason := placementFailure(e); reason != "" {
					return fmt.Errorf("nomad cannot place the job: %s", reason)
				}
			}
		}
		return errors.New("nomad has not placed the job yet")
	}
	newest := allocs[0]
	for _, a := range allocs {
		if a.CreateIndex > newest.CreateIndex {
			newest = a
		}
	}
	var states []string
	task := "" // whose logs may tell more
	for name, ts := range newest.TaskStates {
		if task == "" || ts.Failed {
			task = name
		}
		state := name + " is " + ts.State
		if ts.Failed {
			state += " (failed)"
		}
		if n := len(ts.Events); n > 0 {
			state += ": " + ts.Events[n-1].DisplayMessage
		}
		states = append(states, state)
	}
	err = fmt.Errorf("allocation %.8s is %s; %s (logs: nomad alloc logs -stderr %.8s %s)", newest.ID, newest.ClientStatus,
		strings.Join(states, "; "), newest.ID, task)
	if newest.ClientStatus == nomadapi.AllocClientStatusFailed {
		return permanent{err}
	}
	return err
}

func placementFailure(e *nomadapi.Evaluation) string {
	for group, m := range e.FailedTGAllocs {
		var why []string
		for constraint, n := range m.ConstraintFiltered {
			why = append(why, fmt.Sprintf("constraint %q excludes %d nodes", constraint, n))
		}
		for dimension, n := range m.DimensionExhausted {
			why = append(why, fmt.Sprintf("%s is exhausted on %d nodes", dimension, n))
		}
		return fmt.Sprintf("group %q: %d nodes looked at; %s", group, m.NodesEvaluated, strings.Join(why, "; "))
	}
	return ""
}

// awaitAnswer sends one real request through the gateway.
func (c *Cluster) awaitAnswer(ctx context.Context) (string, error) {
	if c.model == "" {
		return "", nil // nothing serves
	}
	body, err := json.Marshal(map[string]any{"model": c.model, "max_tokens": 8,
		"messages": []map[string]string{{"role": "user", "content": "Hello"}}})
	if err != nil {
		return "", err
	}
	var answer string
	err = c.out.waitFor(ctx, time.Minute, func(ctx context.Context) error {
		answer, err = c.ask(ctx, body)
		return err
	})
	return answer, err
}

func (c *Cluster) ask(ctx context.Context, body []byte) (string, error) {
	url := c.ports.url("gateway") + "/v1/chat/completions"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the gateway answers %s: %.200s", resp.Status, raw)
	}
	var answer struct {
		Choices []struct {
			Message struct{ Content string }
		}
	}
	if err := json.Unmarshal(raw, &answer); err != nil || len(answer.Choices) == 0 {
		return "", fmt.Errorf("the gateway's answer is no chat completion: %.200s", raw)
	}
	return fmt.Sprintf("%q", answer.Choices[0].Message.Content), nil
}

// stopJobs stops every job of the cluster and waits until their tasks ended.
func (c *Cluster) stopJobs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	q := (&nomadapi.QueryOptions{}).WithContext(ctx)
	list, _, err := c.nomad.Jobs().List(q)
	if err != nil {
		return err
	}
	for _, job := range list {
		if job.Stop {
			continue
		}
		if _, _, err := c.nomad.Jobs().Deregister(job.ID, false, (&nomadapi.WriteOptions{}).WithContext(ctx)); err != nil {
			return fmt.Errorf("stop job %q: %w", job.ID, err)
		}
	}
	for {
		allocs, _, err := c.nomad.Allocations().List(q)
		if err != nil {
			return err
		}
		running := 0
		for _, a := range allocs {
			switch a.ClientStatus {
			case nomadapi.AllocClientStatusPending, nomadapi.AllocClientStatusRunning:
				running++
			}
		}
		if running == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d allocations still run: %w", running, ctx.Err())
		case <-time.After(probeEvery):
		}
	}
}
