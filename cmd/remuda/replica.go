package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/internal/bytesize"
	"remuda/internal/closest"
)

func (p *program) replicaVerbs() map[string]verb {
	return map[string]verb{
		"replica list":   p.apiVerb(replicaList),
		"replica status": p.apiVerb(replicaStatus),
	}
}

var replicaList = apiCommand{
	synopsis: "List the replicas",
	about:    `Lists the replicas of all models, or of one, with their tier, status, node, seats and requests.`,
	setupShow: func(fs *flag.FlagSet) showFunc {
		model := fs.String("model", "", "only replicas of this `model`")
		return func(ctx context.Context, c *apiClient, _ []string, q api.QueryOptions) (api.QueryMeta, error) {
			replicas, meta, err := c.Replicas(ctx, *model, q)
			if err != nil {
				return meta, err
			}
			return meta, c.print(list(replicas), func() error {
				if len(replicas) == 0 {
					fmt.Fprintln(c.out, "No replicas.")
					return nil
				}
				return c.replicaTable(replicas)
			})
		}
	},
}

// statusText is the status of a replica, with the tier that a replica on its way out leads
// to: "draining to WARM".
func statusText(r api.Replica) string {
	switch r.Status {
	case "draining", "stopping", "discarding":
		if r.Goal == "warm" || r.Goal == "cold" {
			return r.Status + " to " + strings.ToUpper(r.Goal)
		}
	}
	return r.Status
}

func (c *apiClient) replicaTable(replicas []api.Replica) error {
	at := now()
	var seats, names []string
	for _, r := range replicas {
		seats, names = append(seats, r.Seats...), append(names, r.Name)
	}
	seatsText, name := shortSeats(seats), c.shortNames(names)
	t := c.table("REPLICA", "TIER", "STATUS", "NODE", "+SEATS", "IN FLIGHT", "SINCE", "NOTE")
	for _, r := range replicas {
		inFlight := "-"
		if r.Load != nil {
			inFlight = fmt.Sprint(r.Load.InFlight)
		}
		t.row(name(r.Name), r.Tier, statusText(r), nodeText(r), seatsText(r.Seats), inFlight, age(r.Since, at), replicaNote(r))
	}
	return t.flush()
}

func nodeText(r api.Replica) string {
	if r.NodeName != "" {
		return r.NodeName
	}
	return short(r.Node)
}

// shortSeats returns a function that shortens device IDs in a listing of all these: to the beginning
// of the GPU's UUID, or to its end if the beginnings are not unique, as those of simulated GPUs.
func shortSeats(all []string) func(seats []string) string {
	gpus := map[string]string{}
	begin := func(gpu string) string {
		kind, rest, _ := strings.Cut(gpu, "-")
		return kind + "-" + short(rest)
	}
	same := false
	for _, s := range all {
		gpu, _, _ := strings.Cut(s, "#")
		other, ok := gpus[begin(gpu)]
		same = same || ok && other != gpu || strings.HasSuffix(begin(gpu), "-00000000")
		gpus[begin(gpu)] = gpu
	}
	return func(seats []string) string {
		texts := make([]string, len(seats))
		for i, s := range seats {
			texts[i] = s
			gpu, seat, ok := strings.Cut(s, "#")
			kind, rest, dashed := strings.Cut(gpu, "-")
			switch last := strings.LastIndexByte(rest, '-'); {
			case !ok || !dashed:
			case same && last >= 0:
				texts[i] = kind + "-…" + rest[last+1:] + "#" + seat
			default:
				texts[i] = begin(gpu) + "#" + seat
			}
		}
		return strings.Join(texts, ",")
	}
}

// replicaNote is what is unusual about a replica.
func replicaNote(r api.Replica) string {
	var notes []string
	if r.Canary {
		notes = append(notes, "canary")
	}
	if r.LoadMemory > 0 {
		notes = append(notes, "loads to become WARM")
	}
	if !r.Current {
		notes = append(notes, "outdated definition")
	}
	if r.Failures > 0 {
		notes = append(notes, plural(r.Failures, "failure"))
	}
	if r.LastError != "" {
		notes = append(notes, r.LastError)
	}
	if r.NotServing != "" {
		notes = append(notes, r.NotServing)
	}
	if r.Pair != nil && r.Pair.Degraded != "" {
		notes = append(notes, "DEGRADED: "+r.Pair.Degraded)
	}
	if r.MakesRoomFor != "" {
		notes = append(notes, "evicted for "+r.MakesRoomFor)
	}
	if r.OutOfUse != "" {
		notes = append(notes, r.OutOfUse)
	}
	return strings.Join(notes, "; ")
}

var replicaStatus = apiCommand{
	synopsis: "Show a replica",
	about:    `Shows one replica, given by its name, or by a unique prefix of its name or ID.`,
	args:     []string{"REPLICA"},
	show: func(ctx context.Context, c *apiClient, args []string, q api.QueryOptions) (api.QueryMeta, error) {
		found, err := c.findReplica(ctx, args[0])
		if err != nil {
			return api.QueryMeta{}, err
		}
		r, meta, err := c.Replica(ctx, found.Name, q)
		if err != nil {
			return meta, err
		}
		return meta, c.print(r, func() error { return c.showReplica(r) })
	},
}

// versionText is a replica's version, marked where the model has another definition by now.
func versionText(r api.Replica) string {
	if r.Current {
		return fmt.Sprint(r.Version)
	}
	return fmt.Sprintf("%d (outdated)", r.Version)
}

func (c *apiClient) showReplica(r api.Replica) error {
	at := now()
	f := c.fields()
	f.set("Name", r.Name)
	f.set("Model", r.Model)
	f.set("Variant", r.Variant)
	f.set("Version", versionText(r))
	f.set("Tier", r.Tier)
	f.set("Status", fmt.Sprintf("%s for %s", r.Status, age(r.Since, at)))
	f.set("Goal", r.Goal)
	f.set("Node", strings.TrimSpace(r.NodeName+" "+r.Node))
	f.set("Capacity pool", poolName(r.CapacityPool))
	f.set("Seats", strings.Join(r.Seats, ", "))
	var gpus []string
	for gpu := range r.Memory {
		gpus = append(gpus, gpu)
	}
	slices.Sort(gpus)
	for _, gpu := range gpus {
		f.set("GPU memory (HOT)", bytesize.Text(r.Memory[gpu])+" of "+gpu)
	}
	if r.HostMemory > 0 {
		f.set("Host memory (WARM)", bytesize.Text(r.HostMemory))
	}
	if r.LoadMemory > 0 {
		f.set("GPU memory (loading)", bytesize.Text(r.LoadMemory)+" of each GPU until it is WARM")
	}
	if r.SharedMemory > 0 {
		f.set("GPU memory (shared)", bytesize.Text(r.SharedMemory)+" of each GPU, with replicas of its version on the same GPUs")
	}
	if r.SleepMemory > 0 {
		f.set("GPU memory (WARM)", bytesize.Text(r.SleepMemory)+" of each GPU")
	}
	if p := r.Pair; p != nil {
		f.setIf("Serves", p.Serves)
		standby := "ready"
		switch {
		case p.Degraded != "":
			standby = "missing for " + age(p.DegradedSince, at)
		case !p.StandbySince.IsZero():
			standby = "ready for " + age(p.StandbySince, at)
		}
		f.set("Standby", standby)
		if o := p.LastFailover; !o.At.IsZero() {
			gpu := ""
			if o.GPU != "" {
				gpu = "; " + o.GPU
			}
			f.set("Last failover", fmt.Sprintf("%s, in %.3f s: the %s ended (%s: %s)%s", clock(o.At), o.Seconds, o.From, o.Cause, o.Reason, gpu))
		}
	}
	f.set("Nomad job", r.Name)
	f.set("Created", clock(r.CreatedAt))
	f.setIf("Note", replicaNote(r))
	if !r.RetryAt.IsZero() {
		f.set("Next retry", clock(r.RetryAt))
	}
	if r.Load == nil {
		f.set("In flight", "unknown")
	} else {
		f.set("In flight", r.Load.InFlight)
		f.set("Last request", clock(r.Load.LastRequest))
		f.set("Last 30 s", fmt.Sprintf("%d requests answered, %d failed", r.Load.Answered, r.Load.Failed))
		f.set("Failed in a row", r.Load.FailedInARow)
	}
	if err := f.flush(); err != nil {
		return err
	}
	if r.Pair != nil && r.Pair.LastFailover.Log != "" {
		fmt.Fprintf(c.out, "\nLast lines of the %s before that failover\n%s\n", r.Pair.LastFailover.From, r.Pair.LastFailover.Log)
	}
	if r.Load == nil || len(r.Load.Requests) == 0 {
		return nil
	}
	fmt.Fprintln(c.out, "\nRequests in flight, oldest first")
	t := c.table("REQUEST", "FOR")
	for _, q := range r.Load.Requests {
		t.row(q.ID, age(q.Started, at))
	}
	return t.flush()
}

// shortNames returns a function that shortens the names of replicas, <model>:<variant>:<ID>, to a
// prefix: the first eight characters of the ID, or more if these names have the same ones. Verbs take
// such a prefix for a name. With -verbose nothing is shortened.
func (c *apiClient) shortNames(names []string) func(name string) string {
	n := 8
	cut := func(name string) string {
		id := strings.LastIndexByte(name, ':') + 1
		return name[:min(len(name), id+n)]
	}
	if c.verbose {
		return func(name string) string { return name }
	}
	for unique := false; !unique; n += 4 {
		whole := map[string]string{}
		unique = true
		for _, name := range names {
			other, ok := whole[cut(name)]
			unique = unique && (!ok || other == name)
			whole[cut(name)] = name
		}
		if unique {
			break
		}
	}
	return cut
}

// findReplica finds a replica by its name, its ID, or the beginning of either.
func (c *apiClient) findReplica(ctx context.Context, arg string) (api.Replica, error) {
	replicas, _, err := c.Replicas(ctx, "", api.QueryOptions{})
	if err != nil {
		return api.Replica{}, err
	}
	var found []api.Replica
	var names, words []string
	for _, r := range replicas {
		if r.Name == arg || r.ID == arg {
			return r, nil
		}
		if strings.HasPrefix(r.Name, arg) || strings.HasPrefix(r.ID, arg) {
			found, names = append(found, r), append(names, r.Name)
		}
		// An ID is often given by its first characters.
		words = append(words, r.Name, r.ID, r.ID[:min(len(r.ID), len(arg))])
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return api.Replica{}, fmt.Errorf("no replica %q%s: see \"remuda replica list\"", arg, didYouMean(arg, words))
	}
	return api.Replica{}, ambiguous(arg, names)
}

// ambiguous is the error about a prefix of several names.
func ambiguous(arg string, names []string) error {
	slices.Sort(names)
	return fmt.Errorf("%q is ambiguous: use a longer prefix of one of\n  %s", arg, strings.Join(names, "\n  "))
}

// didYouMean returns ` (did you mean "…"?)` with the word closest to arg, or nothing if none is close.
func didYouMean(arg string, words []string) string {
	if near := closest.Word(arg, words); near != "" {
		return fmt.Sprintf(" (did you mean %q?)", near)
	}
	return ""
}
