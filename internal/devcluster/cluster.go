package devcluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	nomadapi "github.com/hashicorp/nomad/api"

	"remuda/controller/api"
	"remuda/controller/modelfile"
	"remuda/controller/state"
)

// Cluster is one running cluster. Create it with New and call Run once.
type Cluster struct {
	opts  Options
	dir   *dataDir
	ports *portBlock
	out   *printer
	// ready is closed once the cluster is up.
	ready chan struct{}
	// tools are the programs that were found, by name.
	tools map[string]tool
	// raftSecret closes the controllers' Raft ports to other local processes.
	raftSecret string

	nomad      *nomadapi.Client
	consul     *consulapi.Client
	controller *api.Client
	// daemons in the order in which they were started.
	daemons []*daemon
	// models are those of the model file; model is the first that serves, and job its
	// replica's.
	source     modelfile.Source
	models     []state.Model
	model, job string
}

// Info is what a cluster writes to cluster.json in its data directory, so that
// scripts find everything.
type Info struct {
	DataDir string `json:"data_dir"`
	// Gateway and Controller are the URLs of the first ones, Gateways and Controllers
	// those of all.
	Gateway  string   `json:"gateway"`
	Gateways []string `json:"gateways"`
	// GatewayOperators are the URLs of the gateways' ports for operators, in the same order.
	GatewayOperators []string `json:"gateway_operators"`
	Controller       string   `json:"controller"`
	Controllers      []string `json:"controllers"`
	// Nomad is a URL, Consul a host with its port.
	Nomad  string `json:"nomad"`
	Consul string `json:"consul"`
	// SparePorts are two that no daemon and no Nomad uses, for programs beside the cluster.
	SparePorts []int `json:"spare_ports"`
	// GPUs are the UUIDs of the simulated GPUs by the names of their nodes.
	GPUs map[string][]string `json:"gpus"`
	// Model is the first of the model file that serves, and Job the job of its
	// replica, which is the replica's name; both are empty where none should.
	Model string         `json:"model"`
	Job   string         `json:"job"`
	PIDs  map[string]int `json:"pids"`
}

// InfoFile is the name of the file that holds Info once the cluster is up.
const InfoFile = "cluster.json"

// New validates the options and names everything that is wrong with them.
func New(opts Options) (*Cluster, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	return &Cluster{opts: opts, out: newPrinter(opts.Out), ready: make(chan struct{}), raftSecret: rand.Text()}, nil
}

// Ready is closed once the cluster is up. Only then may Info, PID, End and Start be called.
func (c *Cluster) Ready() <-chan struct{} { return c.ready }

// PID returns the process ID of a daemon, and 0 while it is not running.
func (c *Cluster) PID(daemon string) int {
	if d := c.daemon(daemon); d != nil {
		return d.pid()
	}
	return 0
}

// End ends a daemon with a signal and keeps it down until Start. It returns an error if the
// daemon does not end within half a minute.
func (c *Cluster) End(daemon string, sig os.Signal) error {
	d := c.daemon(daemon)
	if d == nil {
		return fmt.Errorf("the cluster has no daemon %q", daemon)
	}
	return d.end(sig)
}

// Start starts a daemon again that End has ended.
func (c *Cluster) Start(daemon string) error {
	d := c.daemon(daemon)
	if d == nil {
		return fmt.Errorf("the cluster has no daemon %q", daemon)
	}
	return d.again()
}

// Replace sets the program that Start starts. Call it between End and Start.
func (c *Cluster) Replace(daemon, program string) error {
	d := c.daemon(daemon)
	if d == nil {
		return fmt.Errorf("the cluster has no daemon %q", daemon)
	}
	d.path = program
	return nil
}

func (c *Cluster) daemon(name string) *daemon {
	for _, d := range c.daemons {
		if d.name == name {
			return d
		}
	}
	return nil
}

// Run brings the cluster up, prints where everything is, and stays until ctx
// ends. It takes everything down before it returns, whatever happened; hurry
// ends the patience it has with that.
func (c *Cluster) Run(ctx context.Context, hurry <-chan struct{}) (err error) {
	if err := c.opts.resolve(); err != nil {
		return err
	}
	if c.source, c.models, err = loadModels(c.opts); err != nil {
		return err
	}
	if c.dir, err = openDataDir(c.opts.DataDir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.dir.Close()) }()
	defer func() {
		// A crash of ours must not leave a cluster behind either.
		crash := recover()
		err = errors.Join(err, c.takeDown(hurry))
		if crash != nil {
			panic(crash)
		}
	}()
	c.out.line("remuda dev: everything is under %s", c.dir.path)
	up := c.bringUp(ctx)
	if up != nil {
		if ctx.Err() != nil {
			c.out.line("interrupted")
			return nil
		}
		return up
	}
	c.summary()
	close(c.ready)
	<-ctx.Done()
	c.out.line("")
	return nil
}

// step is one thing that bringUp does and prints with its time.
type step struct {
	name string
	do   func(ctx context.Context) (result string, err error)
}

func (c *Cluster) bringUp(ctx context.Context) error {
	steps := []step{
		{"clean up", c.cleanLeftovers},
		{"tools", c.findTools},
		{"consul", c.startConsul},
		{"nomad", c.startNomadServer},
		{"node", c.startNomadClients},
		{"controller", c.startControllers},
		{"gateway", c.startGateways},
		{"services", c.runNodes},
		{"model", c.applyModels},
		{"engine", c.awaitEngines},
		{"answer", c.awaitAnswer},
	}
	if !c.opts.NoAutoscaler {
		// Last, so that it finds the models.
		steps = append(steps, step{"autoscaler", c.startAutoscalers})
	}
	for _, s := range steps {
		begin := time.Now()
		end := c.out.begin(s.name)
		result, err := s.do(ctx)
		end()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("step %q failed after %s: %w", s.name, time.Since(begin).Round(100*time.Millisecond), err)
		}
		if result != "" {
			c.out.step(s.name, time.Since(begin), result)
		}
	}
	return c.writeInfo()
}

func (c *Cluster) cleanLeftovers(context.Context) (string, error) {
	processes, mounts, err := c.clean(2 * time.Second)
	if err != nil {
		return "", err
	}
	if err := c.dir.wipe(); err != nil {
		return "", err
	}
	if processes+mounts == 0 {
		return "", nil
	}
	return fmt.Sprintf("ended %d processes and removed %d mounts of an earlier run that was killed", processes, mounts), nil
}

// clean ends every process and removes every mount of this data directory.
func (c *Cluster) clean(grace time.Duration) (processes, mounts int, err error) {
	processes, err = c.dir.sweep(grace)
	if err != nil {
		return processes, 0, err
	}
	mounts, err = c.dir.unmount()
	return processes, mounts, err
}

func (c *Cluster) findTools(ctx context.Context) (string, error) {
	want := []tool{nomadTool, consulTool}
	if !c.opts.NoAutoscaler {
		want = append(want, autoscalerTool)
	}
	if c.anyVariant(func(v state.Variant) bool { return v.Engine == EngineOllama }) {
		want = append(want, ollamaTool)
	}
	box, err := newToolbox(c.opts, c.out)
	if err != nil {
		return "", err
	}
	if c.tools, err = box.get(ctx, want); err != nil {
		return "", err
	}
	var versions []string
	for _, t := range want {
		versions = append(versions, t.name+" "+c.tools[t.name].version)
	}
	if c.ports, err = claimPorts(c.opts.portNames()); err != nil {
		return "", err
	}
	return strings.Join(versions, ", "), c.writeConfigs()
}

// run starts a daemon and waits until ready succeeds and the daemon itself listens on its
// port, which is given by its name. It fails when the daemon ends before that.
func (c *Cluster) run(ctx context.Context, name, path string, args []string, port string, limit time.Duration, ready func(context.Context) error) error {
	d := &daemon{name: name, path: path, args: args, env: c.environment(), log: c.dir.join("logs", name+".log"), say: c.out.line}
	if err := d.start(); err != nil {
		return err
	}
	c.daemons = append(c.daemons, d)
	return c.out.waitFor(ctx, limit, func(ctx context.Context) error {
		if err := d.died(); err != nil {
			return permanent{err}
		}
		if err := ready(ctx); err != nil {
			return err
		}
		err := listensAt(d.pid(), c.ports.ports[port])
		if taken := (errTaken{}); errors.As(err, &taken) {
			return permanent{errors.Join(err, d.died())}
		}
		return err
	})
}

func (c *Cluster) startConsul(ctx context.Context) (string, error) {
	cfg := consulapi.DefaultConfig()
	cfg.Address, cfg.Scheme, cfg.Token = c.ports.addr("consul-http"), "http", ""
	var err error
	if c.consul, err = consulapi.NewClient(cfg); err != nil {
		return "", fmt.Errorf("consul client: %w", err)
	}
	err = c.run(ctx, "consul", c.tools["consul"].path, []string{"agent", "-config-file", c.dir.join("config", "consul.json")}, "consul-http", time.Minute,
		func(context.Context) error {
			leader, err := c.consul.Status().Leader()
			if err == nil && leader == "" {
				err = errors.New("no leader yet")
			}
			return err
		})
	return "http://" + cfg.Address, err
}

// startNomadServer starts the server and waits until it can sign identities:
// a node that registers before the keyring has a key is refused, and then tries
// again only after 15 to 30 s.
func (c *Cluster) startNomadServer(ctx context.Context) (string, error) {
	cfg := nomadapi.DefaultConfig()
	cfg.Address, cfg.SecretID, cfg.Region, cfg.Namespace = "http://"+c.ports.addr("nomad-http"), "", "", ""
	var err error
	if c.nomad, err = nomadapi.NewClient(cfg); err != nil {
		return "", fmt.Errorf("nomad client: %w", err)
	}
	err = c.run(ctx, "nomad-server", c.tools["nomad"].path, []string{"agent", "-config", c.dir.join("config", "nomad-server.hcl")}, "nomad-http", time.Minute,
		func(context.Context) error { return c.nomadCanSign() })
	return cfg.Address, err
}

func (c *Cluster) startNomadClients(ctx context.Context) (string, error) {
	var names []string
	seats := 0
	for i := range c.opts.Nodes {
		name := numbered("nomad-client", i)
		err := c.run(ctx, name, c.tools["nomad"].path, []string{"agent", "-config", c.dir.join("config", name+".hcl")}, numbered("nomad-client-http", i), time.Minute,
			func(context.Context) error {
				n, err := c.nomadSeats(nodeName(i))
				if err == nil {
					seats += n
				}
				return err
			})
		if err != nil {
			return "", err
		}
		names = append(names, nodeName(i))
	}
	return fmt.Sprintf("%s, %d simulated GPUs with %d seats", strings.Join(names, ", "), c.opts.GPUs*c.opts.Nodes, seats), nil
}

func (c *Cluster) startGateways(ctx context.Context) (string, error) {
	for i := range c.opts.Gateways {
		name := numbered("gateway", i)
		err := c.run(ctx, name, c.opts.Remuda, []string{"gateway", "-config", c.dir.join("config", name+".hcl")}, name, 30*time.Second,
			func(ctx context.Context) error { return getOK(ctx, c.ports.url(name)+"/ready") })
		if err != nil {
			return "", err
		}
	}
	return strings.Join(c.urls("gateway", c.opts.Gateways), ", "), nil
}

// urls are those of several daemons of a kind.
func (c *Cluster) urls(kind string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, c.ports.url(numbered(kind, i)))
	}
	return out
}

func (c *Cluster) summary() {
	c.out.line("")
	model := c.model
	if model == "" {
		model = c.models[0].Name
		c.out.line("Ready in %.1f s. No model should run; `remuda scale %s 1` starts one.", c.out.elapsed().Seconds(), model)
	} else {
		c.out.line("Ready in %.1f s. The model %q answers:", c.out.elapsed().Seconds(), model)
		c.out.line("")
		c.out.line(`  curl -N http://%s/v1/chat/completions -H 'Content-Type: application/json' \`, c.ports.addr("gateway"))
		c.out.line(`    -d '{"model":%q,"stream":true,"max_tokens":64,"messages":[{"role":"user","content":"Hello"}]}'`, model)
	}
	c.out.line("")
	c.out.line("  remuda UI  http://%s/ui", c.ports.addr("controller"))
	c.out.line("  Nomad UI   http://%s/ui/", c.ports.addr("nomad-http"))
	c.out.line("  Consul UI  http://%s/ui/", c.ports.addr("consul-http"))
	c.out.line("  Gateway    http://%s/v1 (OpenAI), http://%s/metrics (operators)", c.ports.addr("gateway"), c.ports.addr("gateway-operators"))
	c.out.line("  Controller %s", strings.Join(c.urls("controller", c.opts.Controllers), ", "))
	if !c.opts.NoAutoscaler {
		c.out.line("  Autoscaler http://%s/metrics (decisions); %s", c.ports.addr("autoscaler-metrics"), c.policyPath())
	}
	c.out.line("  Model file %s", c.modelPath())
	c.out.line("  GPU node   http://%s (for remuda device doctor -nomad)", c.ports.addr("nomad-client-http"))
	c.out.line("  Logs       %s", c.dir.join("logs"))
	c.out.line("  In another terminal, for remuda, nomad and consul:")
	c.out.line("    export %s=http://%s REMUDA_GATEWAY=http://%s", api.EnvAddress, c.ports.addr("controller"), c.ports.addr("gateway"))
	path := []string{filepath.Dir(c.opts.Remuda)}
	for _, name := range []string{"nomad", "consul"} {
		if dir := filepath.Dir(c.tools[name].path); !slices.Contains(path, dir) {
			path = append(path, dir)
		}
	}
	c.out.line("    export NOMAD_ADDR=http://%s CONSUL_HTTP_ADDR=%s PATH=%s:$PATH", c.ports.addr("nomad-http"), c.ports.addr("consul-http"), strings.Join(path, ":"))
	c.out.line("    remuda model status %s", model)
	c.out.line("    remuda scale %s 2", model)
	c.out.line("")
	c.out.line("Ctrl-C ends everything.")
}

// Info says where everything is.
func (c *Cluster) Info() Info {
	gateways, controllers := c.urls("gateway", c.opts.Gateways), c.urls("controller", c.opts.Controllers)
	info := Info{DataDir: c.dir.path, Gateway: gateways[0], Gateways: gateways, GatewayOperators: c.urls("gateway-operators", c.opts.Gateways), Controller: controllers[0], Controllers: controllers,
		Nomad: c.ports.url("nomad-http"), Consul: c.ports.addr("consul-http"), SparePorts: []int{c.ports.ports["spare"], c.ports.ports["spare-2"]}, GPUs: map[string][]string{}, Model: c.model, Job: c.job, PIDs: map[string]int{}}
	for i := range c.opts.Nodes {
		info.GPUs[nodeName(i)] = c.gpus(i)
	}
	for _, d := range c.daemons {
		info.PIDs[d.name] = d.pid()
	}
	return info
}

func (c *Cluster) writeInfo() error {
	info := c.Info()
	raw, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return fmt.Errorf("render %s: %w", InfoFile, err)
	}
	if err := os.WriteFile(c.dir.join(InfoFile), append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", InfoFile, err)
	}
	return nil
}

// takeDown ends everything that was started, and proves that nothing is left: first
// the controller, which would bring the jobs back, then the jobs, so that engines
// drain.
func (c *Cluster) takeDown(hurry <-chan struct{}) error {
	begin := time.Now()
	started := len(c.daemons) > 0
	if started {
		c.out.line("stopping …")
		defer c.out.begin("stopping")()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-hurry:
			cancel()
		case <-ctx.Done():
		}
	}()
	for _, d := range c.daemons {
		if strings.HasPrefix(d.name, "controller") {
			c.out.now("waiting for %s", d.name)
			d.stop()
		}
	}
	if c.nomad != nil {
		c.out.now("waiting for the jobs")
		if err := c.stopJobs(ctx); err != nil {
			c.out.line("could not stop the jobs in order (%v): ending their processes", err)
		}
	}
	for i := len(c.daemons) - 1; i >= 0; i-- {
		c.out.now("waiting for %s", c.daemons[i].name)
		c.daemons[i].stop()
	}
	c.out.now("looking for what is left")
	_ = os.Remove(c.dir.join(InfoFile))
	grace := 5 * time.Second
	if ctx.Err() != nil {
		grace = 0
	}
	_, _, err := c.clean(grace)
	err = errors.Join(err, c.dir.wipeSockets())
	if c.ports != nil {
		err = errors.Join(err, c.ports.Close())
	}
	if err != nil {
		return fmt.Errorf("take the cluster down: %w", err)
	}
	if started {
		c.out.line("everything is stopped (%.1f s); logs stay in %s", time.Since(begin).Seconds(), c.dir.join("logs"))
	}
	return nil
}

var _ io.Closer = (*portBlock)(nil)
