package archive

import (
	"context"
	"errors"
	"net/http"

	"cloud.google.com/go/storage"
	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/gcp"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/option"
)

func openGCS(ctx context.Context, d Destination, at location) (*bucketStore, error) {
	transport := d.transport()
	// Tokens are got through the same transport, for a proxy's sake.
	ctx = context.WithValue(ctx, oauth2.HTTPClient, &http.Client{Transport: transport})
	var found *google.Credentials
	var err error
	if key := d.Credentials[CredentialGCSKey]; key != "" {
		found, err = google.CredentialsFromJSONWithType(ctx, []byte(key), google.ServiceAccount, storage.ScopeReadWrite)
		if err != nil {
			// The parser's error may quote the key.
			return nil, errors.New("spec.backup.credentials: the Secret's " + CredentialGCSKey +
				" is not the JSON key of a service account; create one with gcloud iam service-accounts keys create")
		}
	} else if found, err = google.FindDefaultCredentials(ctx, storage.ScopeReadWrite); err != nil {
		return nil, errors.Join(errNoIdentity, err)
	}
	client, err := gcp.NewHTTPClient(transport, gcp.CredentialsTokenSource(found))
	if err != nil {
		return nil, err
	}
	options := &gcsblob.Options{}
	if d.Endpoint != "" {
		options.ClientOptions = append(options.ClientOptions, option.WithEndpoint(d.Endpoint))
	}
	bucket, err := gcsblob.OpenBucket(ctx, client, at.bucket, options)
	if err != nil {
		return nil, err
	}
	return &bucketStore{bucket: bucket}, nil
}
