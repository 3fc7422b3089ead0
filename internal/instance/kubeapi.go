package instance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kumki-dev/kumki/internal/naming"
)

// kubeAPI reads pods and points the Service, with plain requests and types of the few fields that are needed:
// the full client would double the manager's memory.
type kubeAPI struct {
	base      string
	namespace string
	client    *http.Client
}

func newKubeAPI(cfg *rest.Config, namespace string) (*kubeAPI, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	u, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	return &kubeAPI{base: strings.TrimSuffix(u.String(), "/"), namespace: namespace, client: client}, nil
}

// pod has the fields that prove the death of a container.
type pod struct {
	Metadata struct {
		UID               string `json:"uid"`
		DeletionTimestamp string `json:"deletionTimestamp"`
	} `json:"metadata"`
	Status struct {
		Phase             string            `json:"phase"`
		ContainerStatuses []containerStatus `json:"containerStatuses"`
	} `json:"status"`
}

type containerStatus struct {
	Name        string         `json:"name"`
	ContainerID string         `json:"containerID"`
	State       containerState `json:"state"`
	LastState   containerState `json:"lastState"`
}

type containerState struct {
	Running *struct {
		StartedAt time.Time `json:"startedAt"`
	} `json:"running"`
	Terminated *struct {
		ContainerID string `json:"containerID"`
	} `json:"terminated"`
}

// database is the status of the container that runs PostgreSQL.
func (p *pod) database() *containerStatus {
	for i := range p.Status.ContainerStatuses {
		if p.Status.ContainerStatuses[i].Name == naming.ContainerDB {
			return &p.Status.ContainerStatuses[i]
		}
	}
	return nil
}

var (
	errNotFound = errors.New("not found")
	errConflict = errors.New("conflict")
)

// getPod returns errNotFound when there is no such pod.
func (k *kubeAPI) getPod(ctx context.Context, name string) (*pod, error) {
	var p pod
	err := k.do(ctx, http.MethodGet, "pods/"+name, nil, &p)
	return &p, err
}

type service struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		Selector map[string]string `json:"selector"`
	} `json:"spec"`
}

// pointService makes the Service's selector name the pod, by compare-and-swap on its resource version.
// still is asked between read and write: the write happens only if leadership is still held.
func (k *kubeAPI) pointService(ctx context.Context, name, target string, still func() bool) error {
	var s service
	if err := k.do(ctx, http.MethodGet, "services/"+name, nil, &s); err != nil {
		return fmt.Errorf("reading Service %s: %w", name, err)
	}
	if len(s.Spec.Selector) == 1 && s.Spec.Selector[naming.LabelPod] == target {
		return nil
	}
	if !still() {
		return nil
	}
	// A merge patch deletes the keys that are null: none but ours may stay.
	selector := map[string]any{}
	for key := range s.Spec.Selector {
		selector[key] = nil
	}
	selector[naming.LabelPod] = target
	patch := map[string]any{
		"metadata": map[string]any{"resourceVersion": s.Metadata.ResourceVersion},
		"spec":     map[string]any{"selector": selector},
	}
	if err := k.do(ctx, http.MethodPatch, "services/"+name, patch, nil); err != nil {
		return fmt.Errorf("pointing Service %s at %s: %w", name, target, err)
	}
	return nil
}

func (k *kubeAPI) do(ctx context.Context, method, path string, body, into any) error {
	var reader io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(b)
	}
	url := fmt.Sprintf("%s/api/v1/namespaces/%s/%s", k.base, k.namespace, path)
	req, err := http.NewRequestWithContext(ctx, method, url, reader)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return errNotFound
	case resp.StatusCode == http.StatusConflict:
		return errConflict
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("%s %s: %s: %.200s", method, path, resp.Status, raw)
	case err != nil || into == nil:
		return err
	}
	return json.Unmarshal(raw, into)
}
