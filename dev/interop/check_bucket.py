#!/usr/bin/env python3
"""The torture suite's part `buckets` with an S3 server, moto's, and the AWS command line, instead of a folder and cp.

    dev/interop/check_bucket.py [--cases 10] [--seed 1]

Needs ./train_gpt, ./data/tokenize, and of PyPI moto[server] and awscli.
"""

import argparse
import logging
import os
import pathlib
import sys
import tempfile

import boto3
from moto.server import ThreadedMotoServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev/torture"))

import buckets  # noqa: E402
from harness import Bench  # noqa: E402


class S3Bucket:
    def __init__(self, path):
        self.client, self.bucket, self.prefix = boto3.client("s3"), path.name, "some/run"
        self.place = f"s3://{self.bucket}/{self.prefix}"
        self.client.create_bucket(Bucket=self.bucket)

    def names(self):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [item["Key"][len(self.prefix) + 1 :] for page in pages for item in page.get("Contents", ())]

    def read(self, name):
        try:
            return self.client.get_object(Bucket=self.bucket, Key=f"{self.prefix}/{name}")["Body"].read()
        except self.client.exceptions.NoSuchKey as error:
            raise FileNotFoundError(name) from error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ.update(
        PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}", AWS_ENDPOINT_URL=f"http://{host}:{port}",
        AWS_ACCESS_KEY_ID="any", AWS_SECRET_ACCESS_KEY="any", AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true", AWS_CONFIG_FILE=os.devnull,
    )  # fmt: skip
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="bucket_") as scratch, Bench(ROOT, None, scratch, args.seed) as bench:
        cases = buckets.at_random(bench, S3Bucket)
        for number in range(1, args.cases + 1):
            case = next(cases)
            if case.wrong:
                wrong += 1
                print(f"WRONG {number}: {case.wrong}\n      {case.how}", flush=True)
    server.stop()
    print(f"bucket: {args.cases} kills, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
