package gateway

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/api"
	"remuda/controller/gateway/dispatch"
)

const (
	// reportEvery is how often a gateway at rest reports. The controller gives its shares to
	// others when it has not for gatewayreport.ShareTTL (1.5 s): two reports in a row may be lost, and the others
	// have the shares within 2 s.
	reportEvery = 400 * time.Millisecond
	// reportGap is the least time between two reports: what changes within it is told
	// at once.
	reportGap = 100 * time.Millisecond
	// reportTimeout bounds one report. A later one says more.
	reportTimeout = 3 * time.Second
	// reportLast bounds the one with which a gateway leaves.
	reportLast = time.Second
	// reportRequests is how many requests all replicas of a report have together at
	// most, and how many all queues, so that it stays well below what the controller
	// takes (1 MiB): the ID of a pipeline's step has up to 128 bytes.
	reportRequests = 384
)

// reporter tells the controller what is in flight.
type reporter struct {
	servers    []*api.Client
	log        hclog.Logger
	dispatcher *dispatch.Dispatcher
	// address is where others reach the port for clients, gateway is this process's name, and since is when it began to take requests.
	address, gateway string
	since            time.Time
	// sequence is the number of the last report.
	sequence uint64
	// usage is what keys have used.
	usage *usageBook
	// draining tells whether the gateway does, obey carries orders out.
	draining func() bool
	obey     func(api.GatewayOrders)
}

// run reports until ctx ends, and then once more.
func (r *reporter) run(ctx context.Context) {
	rest := time.NewTimer(0)
	defer rest.Stop()
	at, failing := 0, false
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportLast)
			defer cancel()
			_ = r.report(last, r.servers[at]) // it is forgotten without, only later
			return
		case <-r.dispatcher.Changed():
		case <-rest.C:
		}
		once, cancel := context.WithTimeout(ctx, reportTimeout)
		err := r.report(once, r.servers[at])
		cancel()
		reported, pause := time.Now(), reportGap
		switch {
		case err != nil && ctx.Err() == nil:
			if !failing {
				r.log.Warn("cannot report to the controller", "error", err)
			}
			failing = true
			if at = (at + 1) % len(r.servers); at == 0 {
				pause = reportEvery // all were asked
			}
		case err == nil && failing:
			failing = false
			r.log.Info("reporting to the controller again")
		}
		r.rest(ctx, pause, err == nil)
		next := time.Duration(0) // also if the process was stopped meanwhile
		if !failing {
			next = time.Until(reported.Add(reportEvery))
		}
		rest.Reset(next)
	}
}

// rest pauses. A model that nobody wanted before is worth a report at once, unless the
// last one has failed: its client waits for it.
func (r *reporter) rest(ctx context.Context, pause time.Duration, hasty bool) {
	urgent := r.dispatcher.Urgent()
	if !hasty {
		urgent = nil
	}
	select {
	case <-ctx.Done():
	case <-urgent:
	case <-time.After(pause):
	}
}

// report sends what is in flight now, by which state requests are sent now, and what
// clients wanted in vain since the last one.
func (r *reporter) report(ctx context.Context, server *api.Client) error {
	index, loads := r.dispatcher.Flights(api.MaxReportRequests, reportRequests)
	usage := r.usage.report(time.Now())
	queues, counters := r.dispatcher.Queues(api.MaxReportQueues, reportRequests)
	report := api.GatewayReport{Gateway: r.gateway, Address: r.address, Index: index, Since: r.since, Demand: r.dispatcher.TakeWanted(api.MaxReportDemand),
		Queues: queues, Counters: counters, Usage: usage.counters, Draining: r.draining(),
		Replicas: make([]api.ReplicaLoad, len(loads))}
	for i, l := range loads {
		one := api.ReplicaLoad{Name: l.Replica, InFlight: l.InFlight, OldestAt: l.Oldest, LastRequest: l.Last,
			Answered: l.Answered, Failed: l.Failed, FailedInARow: l.FailedInARow}
		for _, f := range l.Flights {
			one.Requests = append(one.Requests, api.Request{ID: f.ID, Key: f.Key, Started: f.Started})
		}
		report.Replicas[i] = one
	}
	report.Keys = r.dispatcher.KeyDemands(api.MaxReportKeys)
	r.sequence++
	report.Sequence, report.Shares = r.sequence, append(usage.claims, r.dispatcher.Claims(api.MaxReportShares-len(usage.claims))...)
	orders, err := server.GatewayReport(ctx, report)
	if err != nil {
		r.dispatcher.GiveWanted(report.Demand)
		return err
	}
	r.usage.delivered(time.Now(), usage, orders)
	r.dispatcher.Share(orders.Shares)
	r.dispatcher.SetKeyParts(report.Keys, orders.KeyParts)
	r.obey(orders)
	return nil
}

// processName is a name that no other gateway has, nor this one's next life: that may
// begin while this one drains.
func processName(addr net.Addr) string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "gateway"
	}
	_, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		port = "0"
	}
	return fmt.Sprintf("%s:%s:%s", host, port, newRequestID()[:8])
}

// addressFor is the URL of the port for clients, as others reach it. Where it listens on all addresses of
// this machine, that is the one from which the machine reaches the controller. Empty: not known.
func addressFor(listen net.Addr, secure bool, controller string) string {
	tcp, ok := listen.(*net.TCPAddr)
	if !ok {
		return ""
	}
	ip := tcp.IP
	if len(ip) == 0 || ip.IsUnspecified() {
		u, err := url.Parse(controller)
		if err != nil {
			return ""
		}
		// A UDP socket that is connected has an address of this machine; nothing is sent.
		probe, err := net.Dial("udp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80")))
		if err != nil {
			return ""
		}
		defer probe.Close()
		local, ok := probe.LocalAddr().(*net.UDPAddr)
		if !ok {
			return ""
		}
		ip = local.IP
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(ip.String(), strconv.Itoa(tcp.Port))
}
