package plugin

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/observe"
	"remuda/controller/api"
	"remuda/controller/consul"
)

// Keys of where to look, beside those of the controller.
const (
	KeyConsul          = "consul"           // address of Consul's agent; "none": not through Consul
	KeyConsulToken     = "consul_token"     // empty: as Consul's own clients have it
	KeyPrometheus      = "prometheus"       // URL of a Prometheus server, in place of Consul
	KeyPrometheusToken = "prometheus_token" // a bearer token
	KeyPromUser        = "prometheus_user"  // for basic authentication, with the password
	KeyPromPassword    = "prometheus_password"
	KeyPromCACert      = "prometheus_ca_cert"        // a PEM file of the authority that signed the server's certificate
	KeyPromHeaders     = "prometheus_headers"        // sent with each query, as "X-Scope-OrgID=tenant"
	KeyPromModelLabel  = "prometheus_model_label"    // the label with the model's name, as "model_id"
	KeyPromMatch       = "prometheus_match"          // labels that all series must have, as "namespace=prod"
	KeyPromReplicas    = "prometheus_replica_labels" // labels that name a replica, the first one that a series has counts
	KeyPromSeries      = "prometheus_series"         // names of series, as "kv_usage=my:kv,waiting=my:queue"
	KeyPromWindow      = "prometheus_window"         // of the peaks
	KeyPromStaleAfter  = "prometheus_stale_after"    // how old a replica's last scrape may be
	KeyScrape          = "scrape_interval"           // between two looks at an engine
)

// Sources says where to look.
type Sources struct {
	// Controller is nil where there is none: it is neither named nor in the environment.
	Controller *api.Config
	// Consul is the address of the Consul agent, through which engines are found where
	// Prometheus is not set; empty: as Consul's own clients have it, "none": not through
	// Consul.
	Consul string
	// ConsulToken is the ACL token for Consul; empty: as Consul's own clients have it.
	ConsulToken string
	// Prometheus is the URL of a Prometheus server that has the engines' metrics, in place
	// of Consul.
	Prometheus string
	// PrometheusToken is a bearer token for the Prometheus server.
	PrometheusToken string
	// PrometheusUser and PrometheusPassword are for basic authentication, in place of the token.
	PrometheusUser, PrometheusPassword string
	// PrometheusCACert is a PEM file of the authority that signed the server's certificate.
	PrometheusCACert string
	// PrometheusHeaders are sent with each query.
	PrometheusHeaders map[string]string
	// PrometheusModelLabel is the label with the model's name, where it is not the engine's own.
	PrometheusModelLabel string
	// PrometheusMatch are labels that all series must have, such as namespace.
	PrometheusMatch []enginemetrics.Matcher
	// PrometheusReplicaLabels name a replica; the first one that a series has counts.
	PrometheusReplicaLabels []string
	// PrometheusSeries are the names of series where they are not the engine's own, by what they
	// measure: running, waiting or kv_usage.
	PrometheusSeries map[string]string
	// PrometheusWindow is over how long the peaks are taken.
	PrometheusWindow time.Duration
	// PrometheusStaleAfter is how old a replica's last scrape may be.
	PrometheusStaleAfter time.Duration
	// Scrape is the time between two looks at an engine.
	Scrape time.Duration
}

// none says that there is no such source.
const none = "none"

// ReadSources reads them.
func ReadSources(r *Settings) Sources {
	c := Sources{Controller: r.Controller()}
	if c.Controller != nil && len(c.Controller.Addresses) == 0 && os.Getenv(api.EnvAddress) == "" {
		c.Controller = nil
	}
	c.Consul, c.ConsulToken = r.Text(KeyConsul, ""), r.Text(KeyConsulToken, "")
	c.Prometheus, c.PrometheusToken = r.Text(KeyPrometheus, ""), r.Text(KeyPrometheusToken, "")
	c.PrometheusUser, c.PrometheusPassword, c.PrometheusCACert = r.Text(KeyPromUser, ""), r.Text(KeyPromPassword, ""), r.Text(KeyPromCACert, "")
	c.PrometheusModelLabel = r.Text(KeyPromModelLabel, "")
	r.Parsed(KeyPromMatch, func(s string) (err error) {
		c.PrometheusMatch, err = matches(s)
		return err
	})
	pairs := func(to *map[string]string) func(string) error {
		return func(s string) error {
			all, err := matches(s)
			*to = map[string]string{}
			for _, m := range all {
				(*to)[m.Name] = m.Value
			}
			return err
		}
	}
	r.Parsed(KeyPromHeaders, pairs(&c.PrometheusHeaders))
	r.Parsed(KeyPromSeries, pairs(&c.PrometheusSeries))
	if labels := r.Text(KeyPromReplicas, ""); labels != "" {
		for _, l := range strings.Split(labels, ",") {
			c.PrometheusReplicaLabels = append(c.PrometheusReplicaLabels, strings.TrimSpace(l))
		}
	}
	c.PrometheusWindow = r.Duration(KeyPromWindow, enginemetrics.DefaultWindow, time.Second, time.Hour)
	c.PrometheusStaleAfter = r.Duration(KeyPromStaleAfter, enginemetrics.DefaultPeaksConfig().StaleAfter, time.Second, time.Hour)
	c.Scrape = r.Duration(KeyScrape, 0, time.Second, time.Minute)
	if c.Prometheus != "" && c.Consul != "" && c.Consul != none {
		r.Fault(KeyPrometheus, "and %s are both set: set only one", KeyConsul)
	}
	if c.Controller == nil && c.Prometheus == "" && c.Consul == none {
		r.Fault(KeyConsul, "is %q, and %s and %s are not set: set at least one of them", none, KeyPrometheus, KeyController)
	}
	return c
}

// View is what models are observed through.
type View struct {
	Observer observe.Observer
	// Close ends what goes on in the background, and waits for it.
	Close func()
}

// OpenSources makes a View, and starts to read engines in the background.
func OpenSources(c Sources, log hclog.Logger) (View, error) {
	var (
		cfg  observe.Config
		done []func()
	)
	if c.Controller != nil {
		client, err := api.NewClient(*c.Controller)
		if err != nil {
			return View{}, err
		}
		done = append(done, client.Close)
		cfg.Controller = observe.NewController(client, nil)
	}
	switch {
	case c.Prometheus != "":
		source, err := observe.NewPrometheus(observe.PrometheusConfig{Address: c.Prometheus, Token: c.PrometheusToken,
			User: c.PrometheusUser, Password: c.PrometheusPassword, CACert: c.PrometheusCACert, Headers: c.PrometheusHeaders,
			ModelLabel: c.PrometheusModelLabel, Match: c.PrometheusMatch, ReplicaLabels: c.PrometheusReplicaLabels,
			Series: c.PrometheusSeries, Window: c.PrometheusWindow, StaleAfter: c.PrometheusStaleAfter})
		if err != nil {
			return View{}, err
		}
		cfg.Metrics, done = source, append(done, source.Close)
	case c.Consul != none:
		of := consul.DefaultWatcherConfig()
		of.Address, of.Logger = consul.Address{Addr: c.Consul, Token: c.ConsulToken}, log.Named("consul")
		watcher, err := consul.NewWatcher(of)
		if err != nil {
			return View{}, err
		}
		with := observe.DefaultScrapeConfig()
		with.Watcher, with.Logger = watcher, log.Named("engines")
		if c.Scrape != 0 {
			with.Interval = c.Scrape
		}
		source, err := observe.NewScraper(with)
		if err != nil {
			return View{}, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() {
			if err := source.Run(ctx); ctx.Err() == nil {
				log.Error("the engines' metrics are no longer read", "error", err)
			}
		})
		cfg.Metrics, done = source, append(done, cancel, running.Wait)
	}
	o, err := observe.New(cfg)
	if err != nil {
		return View{}, err
	}
	return View{Observer: o, Close: func() {
		for _, f := range done {
			f()
		}
	}}, nil
}
