package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"remuda/controller/api"
)

// CheckPolicy reports what is wrong with the policy of a model file: an unknown strategy, an unknown
// key, a bad value. Each of the errors that it joins begins with the key, or with "strategy".
func CheckPolicy(strategy string, settings map[string]string) error {
	if !slices.Contains(StrategyNames(), strategy) {
		return fmt.Errorf("strategy is %q: must be one of %s", strategy, strings.Join(StrategyNames(), ", "))
	}
	r := ReadSettings(settings)
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if slices.Contains(ofModel, key) || foreign(key) {
			r.Fault(key, "is set: remove it, because the model file has the model and its variants")
		}
	}
	r.values["model"] = "model"
	readOptions(r, strategy)
	return r.Err()
}

// ofModel are the keys of a check that a model file has in other places.
var ofModel = []string{"model", "variant", "cost", "slots", "match"}

// TargetPolicyDir is the key of the target's plugin block that names the directory of
// nomad-autoscaler's policy block. The target writes the policies of model files there.
const TargetPolicyDir = "policy_dir"

// policyKey is the key of a target block by which a policy of a model file is known.
const policyKey = "policy"

// policyHash names a policy of a model file: another definition has another hash.
func policyHash(p *api.Policy) string {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// policyFile is the policy as nomad-autoscaler reads it.
func policyFile(p *api.Policy) []byte {
	f := hclwrite.NewEmptyFile()
	scaling := f.Body().AppendNewBlock("scaling", []string{p.Model}).Body()
	scaling.SetAttributeValue("enabled", cty.True)
	scaling.SetAttributeValue("min", cty.NumberIntVal(int64(p.Min)))
	scaling.SetAttributeValue("max", cty.NumberIntVal(int64(p.Max)))
	policy := scaling.AppendNewBlock("policy", nil).Body()
	// The strategies count the replicas that are starting, so no pause is needed after an action.
	policy.SetAttributeValue("cooldown", cty.StringVal("1s"))
	policy.SetAttributeValue("evaluation_interval", cty.StringVal(time.Duration(p.Scaling.Interval).String()))
	check := policy.AppendNewBlock("check", []string{"model-file"}).Body()
	check.SetAttributeValue("source", cty.StringVal("remuda"))
	check.SetAttributeValue("query", cty.StringVal("replicas/"+p.Model))
	strategy := check.AppendNewBlock("strategy", []string{p.Scaling.Strategy}).Body()
	strategy.SetAttributeValue("model", cty.StringVal(p.Model))
	for _, key := range slices.Sorted(maps.Keys(p.Scaling.Settings)) {
		strategy.SetAttributeValue(key, cty.StringVal(p.Scaling.Settings[key]))
	}
	target := policy.AppendNewBlock("target", []string{"remuda"}).Body()
	target.SetAttributeValue("model", cty.StringVal(p.Model))
	target.SetAttributeValue(policyKey, cty.StringVal(policyHash(p)))
	return append([]byte("# The policy of a model, from its model file. The target plugin writes and deletes this file.\n"), f.Bytes()...)
}

// otherPolicy returns why a policy is not that of the model as it is now; empty if it is. hash is
// that of the target block, empty for a policy that a person wrote.
func otherPolicy(m *api.Model, hash string) string {
	switch {
	case m.Scaling == nil && hash == "":
		return ""
	case m.Scaling == nil:
		return "the model file has no policy any more"
	case hash == "":
		return "the model file has a policy, which is the one that counts: remove this one, or the block \"scaling\" of the model file"
	case hash != policyHash(&api.Policy{Model: m.Name, Min: m.Min, Max: m.Max, Scaling: *m.Scaling}):
		return "the model file has a newer policy"
	}
	return ""
}

// policyDir is the directory from which nomad-autoscaler reads policies. Only the files that match
// policyPattern are the plugin's.
type policyDir string

// The names have the hash: nomad-autoscaler 0.5.0 reads a file again only if its name is new.
const policyPattern = "remuda-*.hcl"

func policyName(p *api.Policy) string { return "remuda-" + policyHash(p) + ".hcl" }

// names are the plugin's files, sorted.
func (d policyDir) names() ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if ours, _ := filepath.Match(policyPattern, e.Name()); ours {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// write makes the plugin's files those of the policies and returns their names, sorted. Other files
// are left alone. Two agents may share a directory: they write the same.
func (d policyDir) write(policies []api.Policy) ([]string, error) {
	want := map[string]bool{}
	for i := range policies {
		name := policyName(&policies[i])
		want[name] = true
		content := policyFile(&policies[i])
		if have, err := os.ReadFile(filepath.Join(string(d), name)); err == nil && string(have) == string(content) {
			continue
		}
		if err := d.replace(name, content); err != nil {
			return nil, err
		}
	}
	names, err := d.names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if want[name] {
			continue
		}
		if err := os.Remove(filepath.Join(string(d), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(want)), nil
}

// replace writes a file as a whole.
func (d policyDir) replace(name string, content []byte) error {
	f, err := os.CreateTemp(string(d), ".remuda-*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), filepath.Join(string(d), name))
}
